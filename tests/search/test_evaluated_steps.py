"""Evaluations on the clock leave a budget in seconds fewer steps of the committed line. Probes have none."""

import pytest

from search.bayesian.setup import SearchSetup
from search.budget.link import StepCost
from search.config import BoConfig, Budget
from search.space import SearchSpace, Weights
from search.types import Values

STEP = StepCost(bytes=1000.0, seconds=0.001)


def _setup(evaluation_s=0.0, *, optimizer="adamw", **caps):
    space = SearchSpace(
        optimizer=optimizer,
        guess=Values(learning_rate=1e-3),
        step=STEP,
        evaluation_s=evaluation_s,
        weights=Weights(num_matrices=9, scale=0.05),
    )
    return SearchSetup(space=space, config=BoConfig(), budget=Budget(**(caps or {"seconds": 20.0})), seed=0)


def test_a_run_plans_with_the_steps_that_evaluations_leave():
    quick, slow = _setup(), _setup(0.019)

    assert (quick.num_steps, slow.num_steps) == (pytest.approx(20_000), pytest.approx(1000))
    assert slow.search_fraction == _setup(steps=1000).search_fraction > quick.search_fraction
    assert slow.ramp_steps(slow.num_steps) == _setup(steps=1000).ramp_steps(1000)


def test_probes_are_not_evaluated_so_their_steps_cost_what_they_did():
    assert _setup(0.019).planned_step_cost == _setup().planned_step_cost
    assert _setup(0.019).coarse_step_cost == _setup().coarse_step_cost


@pytest.mark.parametrize("caps", [{"steps": 900}, {"bytes": 10**6}, {"steps": 900, "bytes": 10**6}], ids=str)
def test_a_budget_without_seconds_has_no_room_for_evaluations_to_take(caps):
    assert _setup(0.019, **caps).num_steps == _setup(**caps).num_steps
