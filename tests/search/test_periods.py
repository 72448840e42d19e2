"""Probes of local updates last until an average is seen, if the cap on the search allows it."""

import pytest
from hypothesis import given, settings, strategies as st

from search.bayesian.controller import Controller
from search.bayesian.probe_costs import StepCosts, steps_to_see_average
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import Stage
from search.config import BoConfig, Budget
from search.curves.curve_summary import Reading
from search.space import Axis, OptionAxis, SearchSpace
from search.types import Candidate, Observation, Spent, Values

LEAST = BoConfig().min_probe_steps
LOCAL, CONFIG = "local_sgd 16", BoConfig(max_search_fraction=0.2)
OPTIONS = OptionAxis(options=("none", LOCAL))
#: A level is searched too, so that there are finalists.
LEVEL = Axis(name="level", low=0.001, high=0.1)


def space(*axes: object, **fields: object) -> SearchSpace:
    return SearchSpace.model_validate(
        {"optimizer": "sgd", "guess": Values(learning_rate=0.1, level=0.01), "axes": axes} | fields
    )


def finalists(simulated_run: type, given_space: SearchSpace, budget: Budget, **costs: object) -> list[Candidate]:
    """Return what a wide search asks for when decades are told."""
    run, controller = simulated_run(budget=budget, **costs), Controller(given_space, CONFIG, 0, budget=budget)
    run.search(controller)
    return [candidate for candidate, _ in run.history if candidate.origin != "wide"]


@pytest.mark.parametrize("period", [14, 16, 30])
def test_a_probe_is_longer_than_a_period_where_the_cap_has_room(simulated_run, period: int):
    probes = finalists(simulated_run, space(LEVEL, period=period), Budget(steps=4000))

    assert len(probes) > 2 and {each.allowance.min_steps for each in probes} == {period + 1}


@pytest.mark.parametrize("period", [1, 8, 13])
def test_a_probe_that_sees_an_average_anyway_is_as_short_as_ever(simulated_run, period: int):
    probes = finalists(simulated_run, space(LEVEL, period=period), Budget(steps=4000))

    assert {each.allowance.min_steps for each in probes} == {LEAST}


def test_where_a_period_is_searched_all_probes_are_longer_than_the_longest(simulated_run):
    searched = space(Axis(name="period", low=2, high=20))

    probes = finalists(simulated_run, searched, Budget(steps=4000))

    assert len({each.values.period for each in probes}) > 1
    assert {each.allowance.min_steps for each in probes} == {21}


@settings(max_examples=12)
@given(budget=st.integers(300, 6000), period=st.integers(2, 100))
def test_no_probe_is_given_up_for_longer_ones(simulated_run, budget: int, period: int):
    plain = finalists(simulated_run, space(LEVEL), Budget(steps=budget))
    local = finalists(simulated_run, space(LEVEL, period=period), Budget(steps=budget))

    assert len(local) >= len(plain)
    assert {each.allowance.min_steps for each in local} <= {LEAST, period + 1}


def test_the_search_stays_under_its_cap(simulated_run):
    run, budget = simulated_run(budget=Budget(steps=2000)), Budget(steps=2000)
    run.search(Controller(space(LEVEL, period=40), CONFIG, 0, budget=budget))

    assert run.searched.steps <= 0.2 * 2000
    assert len(run.history[-1][1].losses) > 40


def test_a_later_search_sees_averages_too(simulated_run):
    config = BoConfig(max_search_fraction=0.3, revisit="stages", num_stages=3)
    budget = Budget(steps=6000)
    run, controller = simulated_run(budget=budget), Controller(space(LEVEL, period=40), config, 0, budget=budget)
    run.train(controller)

    later = [candidate.allowance.min_steps for candidate, _ in run.history if candidate.stage > 0]
    assert later and set(later) == {41}


def setup_of(budget: Budget) -> SearchSetup:
    options = {"guess": Values(learning_rate=0.1, option="none"), "periods": ((LOCAL, 16),)}
    return SearchSetup(space=space(OPTIONS, **options), config=CONFIG, budget=budget, seed=0)


def steps(setup: SearchSetup, option: str, *known: str) -> int:
    costs, stage = StepCosts(setup), Stage(index=0, incumbent=setup.opening, has_incumbent=False)
    for each in known:
        observation = Observation(
            candidate_id="0-0",
            losses=(1.0,) * 10,
            step_seconds=(0.01,) * 10,
            bytes_sent=10_000,
            spent=Spent(steps=10, bytes=10_000, seconds=0.1),
        )
        costs.record(setup, Values(learning_rate=0.1, option=each), Reading.of(observation))
    return steps_to_see_average(setup, stage, costs, Values(learning_rate=0.1, option=option))


@pytest.mark.parametrize(("steps_of_run", "expected"), [(2000, 33), (1200, 33), (450, 17), (300, LEAST)])
def test_options_see_two_averages_or_one_or_none_as_the_cap_has_room(steps_of_run: int, expected: int):
    assert steps(setup_of(Budget(steps=steps_of_run)), LOCAL, LOCAL) == expected


@pytest.mark.parametrize("budget", [Budget(steps=2000), Budget(seconds=20.0), Budget(bytes=2_000_000)])
def test_of_options_all_are_as_long_as_that_which_averages_so_that_they_compare(budget: Budget):
    assert steps(setup_of(budget), LOCAL, "none") == 33
    assert steps(setup_of(budget), "none", "none") == 33


@pytest.mark.parametrize(("budget", "expected"), [(Budget(steps=2000), 33), (Budget(seconds=20.0), LEAST)])
def test_an_option_without_averages_whose_steps_may_cost_anything_is_not_drawn_out(budget: Budget, expected: int):
    assert steps(setup_of(budget), "none", LOCAL) == expected


@pytest.mark.parametrize(("steps_of_run", "said"), [(4000, False), (600, True)])
def test_the_reason_says_where_no_average_was_seen(simulated_run, steps_of_run: int, said: bool):
    budget = Budget(steps=steps_of_run)
    run, controller = simulated_run(budget=budget), Controller(space(LEVEL, period=60), CONFIG, 0, budget=budget)
    run.search(controller)

    reason = controller.decide().reason
    assert ("probes saw no average: the cap on the search has no room for 61 steps each" in reason) == said
