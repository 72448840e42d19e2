"""The rival tuners of the suite: their budgets, and their final models."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

pytest.importorskip("tests.support.suite_packages")

from suite.rivals import TUNERS, GreedyRate, Interval, Member, bandit_rate, exploited, tune
from suite.training import Evaluated, Losses

pytestmark = pytest.mark.long  # `make test-long` installs these packages

BEST_RATE = 0.3


class Descent:
    """A model of one number, which falls fastest at `BEST_RATE` and diverges at a hundred times that. Mutable."""

    def __init__(self, limit: float = 100 * BEST_RATE) -> None:
        self.limit, self.rates = limit, list[float]()
        self.num_steps = 0  # ever taken: no restoring takes them back

    def train(self, rates: Sequence[float]) -> list[float]:
        losses = list[float]()
        for rate in rates:
            self.rates.append(rate)
            self.num_steps += 1
            losses.append(self.evaluate())
            if not math.isfinite(losses[-1]):
                break
        return losses

    def evaluate(self) -> float:
        if max(self.rates, default=0.0) > self.limit:
            return math.nan
        return 2.0 / (1.0 + 0.1 * sum(min(rate / BEST_RATE, BEST_RATE / rate) for rate in self.rates if rate))

    def evaluated(self) -> Evaluated:
        return Evaluated(Losses(*[self.evaluate()] * 3))

    def snapshot(self) -> list[float]:
        return list(self.rates)

    def restore(self, snapshot: list[float]) -> None:
        self.rates = list(snapshot)


@pytest.mark.parametrize("name", TUNERS)
@pytest.mark.parametrize("num_steps", [4, 37, 300])
def test_no_tuner_takes_more_steps_than_its_budget(name: str, num_steps: int) -> None:
    model = Descent()

    study = tune(name, model, num_steps, guess=BEST_RATE, seed=1)

    assert model.num_steps == study.spent <= num_steps


@pytest.mark.parametrize("name", TUNERS)
def test_a_study_ends_with_the_model_of_its_best_trial(name: str) -> None:
    model = Descent()

    study = tune(name, model, 200, guess=BEST_RATE, seed=1)

    assert model.evaluate() == study.loss < Descent().evaluate()


@pytest.mark.parametrize("name", ["Optuna", "ASHA", "PBT", "PB2"])
def test_a_guess_that_diverges_is_left_for_rates_that_train(name: str) -> None:
    study = tune(name, Descent(), 400, guess=200 * BEST_RATE, seed=1)

    assert study.loss < 1.0
    assert study.rate is not None and study.rate < 100 * BEST_RATE


@pytest.mark.parametrize("name", TUNERS)
def test_where_everything_diverges_the_loss_is_infinite(name: str) -> None:
    study = tune(name, Descent(limit=0.0), 40, guess=BEST_RATE, seed=1)

    assert (study.loss, study.rate) == (math.inf, None)


def test_a_budget_without_a_step_for_each_trial_is_refused() -> None:
    with pytest.raises(ValueError, match="`num_steps` must be at least 4"):
        tune("PBT", Descent(), 3, guess=BEST_RATE, seed=1)


def test_the_worst_member_goes_on_from_the_best_at_a_rate_to_explore() -> None:
    members = [Member(f"state {index}", 1.0, loss) for index, loss in enumerate((0.3, 0.1, 0.4, 0.2))]

    after = exploited(members, [], lambda best, history, taken: 2.0 * best.rate)

    assert [member.state for member in after] == ["state 0", "state 1", "state 1", "state 3"]
    assert [member.rate for member in after] == [1.0, 1.0, 2.0, 1.0]


def test_the_bandit_goes_on_at_a_rate_near_those_that_gained_most() -> None:
    np.random.seed(0)  # Ray's code draws from there
    history = [
        Interval(end, 10, 10.0**power, before=1.0 / end, after=1.0 / end - gain)
        for end in (10, 20, 30)
        for power, gain in ((-3.0, 0.001), (-2.0, 0.005), (-1.0, 0.02), (0.0, 0.001))
    ]
    best = Member("state", 0.1, history[-2].after)

    rate = bandit_rate(best, history, [], low=1e-4, high=1.0)
    other = bandit_rate(best, history, [rate], low=1e-4, high=1.0)

    assert 0.005 < rate < 0.5 and 1e-4 <= other <= 1.0  # of four decades


def test_a_bandit_that_has_seen_nothing_of_the_best_member_keeps_its_rate() -> None:
    diverged = Interval(10, 10, 3.0, before=1.0, after=math.inf)

    assert bandit_rate(Member("state", 0.1, 0.5), [diverged], [], low=1e-4, high=10.0) == 0.1


def test_a_greedy_rate_rises_while_the_mean_loss_falls_and_falls_while_it_does_not() -> None:
    falling = GreedyRate(1.0, low=0.5, high=2.0)
    flat = GreedyRate(1.0, low=0.5, high=2.0)
    for step in range(11):
        falling.update(1.0 - 0.01 * step)
    for _ in range(12):  # the first one is a new low
        flat.update(1.0)

    assert (falling.rate, flat.rate) == (1 / 0.95, 0.95)


def test_a_greedy_rate_stays_in_its_range() -> None:
    greedy = GreedyRate(1.0, low=0.5, high=2.0)
    for _ in range(500):
        greedy.update(1.0)

    assert greedy.rate == 0.5
