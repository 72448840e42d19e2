"""The optimizer of a run is the one by which its budget teaches the most."""

import pytest

from search.budget.link import StepCost
from search.budget.optimizer_choice import best_optimizer, why_best
from search.optimizer_traits import OPTIMIZER_TRAITS

WORTH = OPTIMIZER_TRAITS["muon"].step_worth


def _steps(**seconds: float) -> dict[str, StepCost]:
    return {kind: StepCost(bytes=100.0, seconds=each) for kind, each in seconds.items()}


@pytest.mark.parametrize(("times", "best"), [(0.99 * WORTH, "muon"), (1.01 * WORTH, "adamw")])
def test_a_step_may_take_as_many_times_as_long_as_it_is_worth(times: float, best: str) -> None:
    assert best_optimizer({"seconds": 60.0}, _steps(adamw=0.01, muon=0.01 * times)) == best


@pytest.mark.parametrize("available", [{"steps": 1000.0}, {"bytes": 1e6}, {"steps": 10.0, "seconds": 1e6}], ids=str)
def test_where_seconds_are_not_short_it_is_the_one_whose_steps_teach_most(available: dict[str, float]) -> None:
    assert best_optimizer(available, _steps(sgd=0.01, adamw=0.01, muon=1.0)) == "muon"


@pytest.mark.parametrize("kinds", [("adamw", "schedulefree_adamw"), ("schedulefree_adamw", "adamw")], ids=str)
def test_of_equals_it_is_the_first(kinds: tuple[str, ...]) -> None:
    alike = {kind: OPTIMIZER_TRAITS[kind].step_worth for kind in kinds}

    assert best_optimizer({"seconds": 60.0}, _steps(**alike)) == kinds[0]


def test_it_says_what_steps_are_worth_and_what_they_take_where_they_were_timed() -> None:
    steps = _steps(adamw=0.01, muon=0.05)

    assert why_best("muon", steps) == (
        f"muon is expected to learn most: a step of adamw is worth 1, a step of muon is worth {WORTH:g}"
    )
    assert why_best("adamw", steps, timed=steps) == (
        "adamw is expected to learn most: a step of adamw is worth 1 and takes 10 ms, "
        f"a step of muon is worth {WORTH:g} and takes 50 ms"
    )
