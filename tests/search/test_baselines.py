"""The strategies that do not search."""

import pytest

from search import strategies
from search.baselines.guess import Cosine, Fixed, Linear, Off
from search.config import Budget, CosineConfig, FixedConfig, LinearConfig, OffConfig, PolynomialConfig
from search.space import Axis, SearchSpace
from search.types import Observation, Spent, Values

SPACE = SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.2, level=0.01))
BUDGET = Budget(steps=100, seconds=10.0)


@pytest.mark.parametrize("config", [FixedConfig(), CosineConfig(), LinearConfig(), PolynomialConfig(), OffConfig()])
def test_a_baseline_asks_nothing_and_commits_the_whole_budget(config):
    strategy = strategies.build(config, space=SPACE, seed=0, budget=BUDGET)
    decision = strategy.decide()

    assert strategy.ask() is None
    assert decision.values == SPACE.guess
    assert (decision.commit_until.steps, decision.commit_until.seconds) == (100, 10.0)


def test_what_is_searched_elsewhere_stays_where_a_search_would_open():
    space = SearchSpace(
        optimizer="sgd", guess=Values(learning_rate=0.2), axes=(Axis(name="level", low=0.01, high=1.0),)
    )
    off = Off(space, BUDGET, OffConfig())

    assert off.decide().values.level == off.values(Spent()).level == space.opening.level == pytest.approx(0.1)


@pytest.mark.parametrize("steps", [0, 50, 100])
def test_fixed_never_changes_the_guess(steps):
    assert Fixed(SPACE, BUDGET, FixedConfig()).values(Spent(steps=steps)) == SPACE.guess


@pytest.mark.parametrize(
    ("spent", "factor"),
    [(Spent(), 1.0), (Spent(steps=50), 0.5), (Spent(seconds=5.0, steps=10), 0.5), (Spent(steps=100), 0.0)],
)
def test_cosine_follows_the_cap_that_is_nearest(spent, factor):
    values = Cosine(SPACE, BUDGET, CosineConfig()).values(spent)

    assert values.learning_rate == pytest.approx(0.2 * factor)
    assert values.level == 0.01


@pytest.mark.parametrize("steps", [0, 50, 101])
def test_polynomial_falls_by_its_power_also_after_it_was_restored(steps):
    made = strategies.build(PolynomialConfig(power=3), space=SPACE, seed=0, budget=BUDGET)

    for strategy in (made, strategies.restore(made.state_dict())):
        expected = 0.2 * max(0.0, 1 - steps / 100) ** 3
        assert strategy.values(Spent(steps=steps)).learning_rate == pytest.approx(expected)


@pytest.mark.parametrize("steps", [0, 25, 100])
def test_linear_falls_with_the_budget(steps):
    assert Linear(SPACE, BUDGET, LinearConfig()).values(Spent(steps=steps)).learning_rate == pytest.approx(
        0.2 * (1 - steps / 100)
    )


@pytest.mark.parametrize(
    ("optimizer", "steps", "factor"),
    [("sgd", 79, 1.0), ("sgd", 90, 0.5), ("sgd", 100, 0.0), ("schedulefree_sgd", 90, 1.0)],
)
def test_off_holds_the_guess_and_cools_plain_optimizers_down(optimizer, steps, factor):
    off = Off(SPACE.model_copy(update={"optimizer": optimizer}), BUDGET, OffConfig(cooldown=0.2))

    assert off.values(Spent(steps=steps)).learning_rate == pytest.approx(0.2 * factor)
    assert strategies.restore(off.state_dict()).values(Spent(steps=steps)) == off.values(Spent(steps=steps))


def test_a_probe_told_to_a_baseline_is_refused():
    observation = Observation(candidate_id="0-0", losses=(), step_seconds=(), bytes_sent=0, spent=Spent())

    with pytest.raises(ValueError, match="`candidate_id`"):
        Fixed(SPACE, BUDGET, FixedConfig()).tell(observation)


def test_a_closed_stage_is_counted_through_a_restart():
    strategy = Fixed(SPACE, BUDGET, FixedConfig())
    strategy.tell(Observation(candidate_id=None, losses=(), step_seconds=(), bytes_sent=0, spent=Spent()))

    assert strategies.restore(strategy.state_dict()).decide().stage == 1


@pytest.mark.parametrize("kind", ["fixed", "cosine", "linear"])
def test_a_baseline_goes_on_from_the_journal_of_an_earlier_release(kind):
    journal = {"kind": kind, "space": SPACE.model_dump(), "budget": BUDGET.model_dump(), "num_closed": 1}

    assert strategies.restore(journal).decide().stage == 1
