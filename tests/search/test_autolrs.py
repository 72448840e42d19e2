"""The published AutoLRS: its stages, search and forecast as in the paper, without the causes of its failures."""

import math

import numpy as np
import pytest

from search.baselines.autolrs import AutoLrs, published_forecast, told_losses
from search.baselines.extrapolation import extrapolate
from search.baselines.lower_bound import lowest_bound
from search.config import AutoLrsConfig, Budget
from search.space import SearchSpace
from search.types import Forecast, Observation, Spent, Values

STEPS = Budget(steps=900)


def _autolrs(*, budget=STEPS, guess=0.1, seed=0, **config):
    space = SearchSpace(optimizer="sgd", guess=Values(learning_rate=guess, level=0.01))
    return AutoLrs(space, AutoLrsConfig(**config), seed, budget=budget)


def _tell(strategy, candidate, losses, *, steps=10, diverged=False):
    spent = Spent(steps=steps, bytes=steps, seconds=steps / 100)
    strategy.tell(
        Observation(
            candidate_id=candidate and candidate.id,
            losses=tuple(losses),
            step_seconds=(0.01,) * len(losses),
            bytes_sent=len(losses),
            diverged=diverged,
            spent=spent,
        )
    )


@pytest.fixture(scope="module")
def run(simulated_run):
    return simulated_run(STEPS).train(_autolrs(num_stages=2, min_learning_rate=1e-4, max_learning_rate=0.3))


def test_doubling_stages_fill_the_budget_and_half_of_it_is_search(run):
    assert run.searched.steps == STEPS.steps / 2
    assert [decision.search_steps for decision in run.decisions] == [150, 300]
    assert [decision.tax.budget_share for decision in run.decisions] == [150 / 900, 450 / 900]
    assert [decision.commit_until.steps for decision in run.decisions] == [300, 900]


def test_each_stage_probes_ten_new_rates_for_a_tenth_of_its_commit(run):
    rates = [candidate.values.learning_rate for candidate, _ in run.history]

    assert [candidate.allowance.steps for candidate, _ in run.history] == [15] * 10 + [30] * 10
    assert len(set(rates[:10])) == len(set(rates[10:])) == 10


def test_with_the_published_kappa_the_probes_fill_the_range(run):
    for probes in (run.history[:10], run.history[10:]):
        places = sorted(math.log10(candidate.values.learning_rate) for candidate, _ in probes)
        assert places[0] < -3.5 and places[-1] > -1
        assert max(np.diff(places)) < 1.0


def test_the_smallest_forecast_wins(run):
    for decision in run.decisions:
        winner = min(decision.probes, key=lambda report: report.forecast.mean)
        assert decision.values == winner.candidate.values
        assert "smallest forecast" in decision.reason and "of the budget" in decision.reason


def test_the_level_is_not_searched(run):
    assert {candidate.values.level for candidate, _ in run.history} == {0.01}


def test_a_first_stage_that_is_given_holds_in_steps_and_growth_ends():
    strategy = _autolrs(budget=Budget(steps=10**4), first_stage=100, max_growth=2, num_probes=2)
    ends = []
    for stage in range(3):
        for _ in range(2):
            _tell(strategy, strategy.ask(), [1.0, 0.9, 0.8, 0.7], steps=1000 * stage)
        ends.append(strategy.decide().commit_until.steps - 1000 * stage)
        _tell(strategy, None, [0.5], steps=1000 * (stage + 1))

    assert ends == [100, 200, 200]


def test_a_probe_runs_alone():
    strategy = _autolrs()
    first = strategy.ask()

    assert strategy.ask() is None
    _tell(strategy, first, [1.0] * 10)
    assert strategy.ask().id != first.id


@pytest.mark.parametrize("losses", [[math.nan] * 10, [1.0] * 9 + [math.inf], [1.0] * 5 + [1e30] * 5])
def test_a_probe_that_blew_up_is_no_number_and_never_wins(losses):
    strategy = _autolrs(num_probes=2)
    bad = strategy.ask()
    _tell(strategy, bad, losses, diverged=not np.isfinite(losses).all())
    good = strategy.ask()
    _tell(strategy, good, np.linspace(1, 0.9, 10))

    decision = strategy.decide()

    assert decision.values == good.values != bad.values
    assert [report.reward is None for report in decision.probes] == [True, False]
    assert [report.forecast.status for report in decision.probes] == ["diverged", "ok"]


def test_what_diverged_is_told_as_little_worse_than_the_worst():
    diverged = Forecast(mean=1e30, std=1.0, status="diverged")
    low, high = (Forecast(mean=mean, std=1.0, status="ok") for mean in (1.0, 3.0))

    assert told_losses([low, diverged, high]) == [1.0, 4.0, 3.0]
    assert told_losses([low, diverged]) == [1.0, 1.1]
    assert told_losses([diverged, diverged]) == [0.0, 0.0]


def test_losses_that_are_all_equal_lead_to_the_widest_gap():
    assert lowest_bound(np.array([0.0, 1.0, 0.3]), np.zeros(3), kappa=1000.0) == pytest.approx(0.65)


def test_if_all_probes_diverge_half_of_the_lowest_rate_is_used():
    strategy = _autolrs(num_probes=2)
    rates = []
    for _ in range(2):
        candidate = strategy.ask()
        rates.append(candidate.values.learning_rate)
        _tell(strategy, candidate, [], diverged=True)

    decision = strategy.decide()

    assert decision.values.learning_rate == pytest.approx(min(0.1, *rates) / 2)
    assert "all 2 probes diverged" in decision.reason


def test_no_rate_below_a_stated_one_is_used_though_all_diverges():
    strategy = _autolrs(num_probes=2, min_learning_rate=0.05, max_learning_rate=0.2)
    for stage in (1, 2):
        while (candidate := strategy.ask()) is not None:
            _tell(strategy, candidate, [], steps=10 * stage, diverged=True)
        assert strategy.decide().values.learning_rate == 0.05
        _tell(strategy, None, [], steps=100 * stage, diverged=True)


@pytest.mark.parametrize(("guess", "rate"), [(1.0, 0.2), (1e-3, 0.05), (0.1, 0.1)])
def test_a_guess_outside_the_stated_range_is_moved_into_it(guess, rate):
    strategy = _autolrs(budget=Budget(steps=3), guess=guess, min_learning_rate=0.05, max_learning_rate=0.2)

    assert strategy.ask() is None
    assert strategy.decide().values.learning_rate == rate


def test_no_search_begins_that_the_budget_does_not_outlast():
    strategy = _autolrs(budget=Budget(steps=50), first_stage=100, num_probes=5)

    assert strategy.ask() is None
    assert strategy.decide().values.learning_rate == 0.1
    assert "is shorter than the search" in strategy.decide().reason


@pytest.mark.parametrize("budget", [Budget(seconds=0.9), Budget(bytes=90_000), Budget(steps=900, seconds=0.9)])
def test_a_first_search_in_steps_ends_after_a_probe_if_the_budget_in_another_unit_does_not_outlast_it(
    simulated_run, budget
):
    strategy = _autolrs(budget=budget, first_stage=100)
    run = simulated_run(budget).train(strategy)  # of 90 steps, where the search takes 100

    assert [len(decision.probes) for decision in run.decisions] == [1]
    assert run.searched.steps <= 10
    assert {decision.values.learning_rate for decision in run.decisions} == {0.1}
    assert "is shorter than the search" in run.decisions[0].reason


def test_a_first_probe_takes_no_more_than_its_share_of_a_budget_in_another_unit(simulated_run):
    budget = Budget(seconds=1.0)
    run = simulated_run(budget).train(_autolrs(budget=budget, first_stage=10_000))

    assert run.searched.steps == 10  # of 1,000 that it would have had
    assert run.spent.steps == 100


@pytest.mark.parametrize("budget", [Budget(seconds=3.45), Budget(bytes=345_000)])
def test_a_later_search_in_steps_opens_only_if_a_budget_in_another_unit_outlasts_it(simulated_run, budget):
    rates = {"min_learning_rate": 1e-3, "max_learning_rate": 0.3}  # none diverges
    run = simulated_run(budget).train(_autolrs(budget=budget, first_stage=100, growth=1.5, **rates))

    assert [len(decision.probes) for decision in run.decisions] == [10, 0]  # 100 + 100 steps, and 150 + 150


@pytest.mark.parametrize("budget", [Budget(seconds=0.36), Budget(bytes=36_000)])
def test_no_search_goes_on_whose_least_probes_the_budget_does_not_outlast(simulated_run, budget):
    run = simulated_run(budget).train(_autolrs(budget=budget))  # of 36 steps, where the first search takes 40

    assert [len(decision.probes) for decision in run.decisions][:2] == [1, 0]
    assert run.searched.steps == 4
    assert all("is shorter than the search" in decision.reason for decision in run.decisions)


@pytest.mark.parametrize("budget", [Budget(seconds=0.8), Budget(bytes=80_000)])
def test_a_later_search_opens_only_if_the_budget_outlasts_its_least_probes(simulated_run, budget):
    run = simulated_run(budget).train(_autolrs(budget=budget, growth=1.0))

    assert [len(decision.probes) > 0 for decision in run.decisions][:2] == [True, False]
    assert run.searched.steps <= 40


def test_a_budget_that_ends_within_a_search_asks_for_nothing_more():
    strategy = _autolrs(budget=Budget(steps=200), num_probes=5)
    _tell(strategy, strategy.ask(), [1.0] * 10, steps=200)

    assert strategy.ask() is None
    assert strategy.decide().commit_until.steps >= 200  # nothing is left to commit


@pytest.mark.parametrize(
    ("budget", "config"),
    [
        (Budget(steps=1), {}),
        (Budget(steps=9), {"num_stages": 12}),
        (Budget(steps=12), {"num_stages": 12, "growth": 1.0}),
        (Budget(bytes=12_000), {"num_stages": 12, "growth": 1.0}),
        (Budget(bytes=23_500), {"num_stages": 12}),
        (Budget(seconds=0.12), {"num_stages": 12, "growth": 1.0}),
    ],
)
def test_a_stage_that_is_shorter_than_a_step_takes_one(simulated_run, budget, config):
    run, strategy = simulated_run(budget), _autolrs(budget=budget, **config)
    while not run.is_over() and len(run.decisions) <= 30:
        before = run.spent.steps
        run.run_stage(strategy)
        assert run.spent.steps > before

    assert run.is_over()


def test_calls_out_of_turn_are_refused():
    strategy = _autolrs()
    candidate = strategy.ask()

    with pytest.raises(ValueError, match="`decide` first"):
        _tell(strategy, None, [1.0])
    _tell(strategy, candidate, [1.0] * 10)
    with pytest.raises(ValueError, match="`candidate_id`"):
        _tell(strategy, candidate, [1.0] * 10)
    strategy.decide()
    with pytest.raises(ValueError, match="`tell` its commit"):
        strategy.ask()


# -- the forecast --------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_stage", [12, 100])
@pytest.mark.parametrize("num_losses", [4, 12])
def test_a_forecast_is_of_the_stages_end_however_long_its_probe_was(first_stage, num_losses):
    strategy, losses = _autolrs(budget=Budget(steps=5000), first_stage=first_stage), _curve(num_losses, 0.0)
    _tell(strategy, strategy.ask(), losses)

    forecast = strategy.decide().probes[0].forecast

    assert forecast.mean == extrapolate(losses.tolist(), first_stage, passes=10, outliers=0.03).mean


@pytest.mark.parametrize(
    ("tau", "horizon"),
    [
        ({"seconds": 0.5}, 50),  # steps take 0.01 s
        ({"bytes": 300.0}, 30),
        ({"bytes": 300.0, "seconds": 0.5}, 30),  # what ends first
        ({"steps": 40.0, "seconds": 0.5}, 40),
    ],
)
def test_a_stage_in_seconds_or_bytes_ends_where_steps_that_take_as_much_as_its_probes_have_spent_it(tau, horizon):
    losses, spent = _curve(8, 0.0), Spent(steps=8)
    observation = Observation(
        candidate_id="0-0", losses=tuple(losses), step_seconds=(0.01,) * 8, bytes_sent=80, spent=spent
    )

    found = published_forecast(AutoLrsConfig(), observation, tau)

    assert found.mean == pytest.approx(extrapolate(losses.tolist(), horizon, passes=10, outliers=0.03).mean)


def test_a_probe_of_which_steps_alone_are_known_is_taken_for_its_share_of_the_stage():
    losses = _curve(8, 0.0)
    observation = Observation(
        candidate_id="0-0", losses=tuple(losses), step_seconds=(), bytes_sent=0, spent=Spent(steps=8)
    )

    found = published_forecast(AutoLrsConfig(), observation, {"seconds": 0.5})

    assert found.mean == extrapolate(losses.tolist(), 80, passes=10, outliers=0.03).mean


def _curve(num_losses, noise, *, seed=0):
    times = np.arange(num_losses)
    return 1 + 2 * np.exp(-times / (0.4 * num_losses)) + np.random.default_rng(seed).normal(0, noise, num_losses)


@pytest.mark.parametrize(
    ("num_losses", "noise", "published"),
    [(67, 0.1, 0.97407752), (100, 0.02, 0.87938617), (100, 0.3, 0.75747051), (400, 0.1, 0.92171385)],
)
def test_the_forecast_is_that_of_the_published_program(num_losses, noise, published):
    found = extrapolate(_curve(num_losses, noise).tolist(), 10 * num_losses, passes=10, outliers=0.03)

    assert found.mean == pytest.approx(published, rel=1e-3)


def test_an_exponential_that_its_spline_can_follow_is_continued():
    losses = 2e3 + 1e5 * np.exp(-np.arange(100) / 40)

    assert extrapolate(losses.tolist(), 1000, passes=10, outliers=0.03).mean == pytest.approx(2e3, rel=0.02)


@pytest.mark.parametrize(
    "losses",
    [[1.0], [2.0, 1.0, 1.5], [1.0] * 30, list(range(30)), list(range(30, 0, -1)), [1e30, 1.0, 2.0, 3.0], [-1.0] * 9],
)
def test_the_forecast_always_answers(losses):
    found = extrapolate(losses, 300, passes=10, outliers=0.03)

    assert math.isfinite(found.mean) and found.std >= 0


@pytest.mark.parametrize("num_losses", [20, 40, 49])
def test_however_many_passes_drop_outliers_the_second_half_of_a_curve_stays(num_losses):
    found = extrapolate(_curve(num_losses, 0.1).tolist(), 10 * num_losses, passes=30, outliers=0.2)

    assert math.isfinite(found.mean) and math.isfinite(found.std)


@pytest.mark.parametrize("num_losses", range(4, 17))
def test_a_short_curve_loses_no_points_to_the_outlier_passes(num_losses):
    losses = _curve(num_losses, 0.1).tolist()

    kept = extrapolate(losses, 10 * num_losses, passes=10, outliers=0.03)

    assert kept == extrapolate(losses, 10 * num_losses, passes=0, outliers=0.03)


@pytest.mark.parametrize("rate", [1e5, 5e-11])
def test_a_guess_outside_the_range_of_rates_is_refused(rate):
    with pytest.raises(ValueError, match=r"`guess.learning_rate` must be in"):
        _autolrs(guess=rate)
