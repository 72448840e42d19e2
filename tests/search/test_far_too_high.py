"""A run whose rate was far too high starts over with the one that its search found."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from search import strategies
from search.bayesian.early_stopping import FAR_BELOW, LITTLE_SHARE, falls_far
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import CommittedLine, RateCourse, Stage, Steered
from search.config import BoConfig, Budget
from search.curves.curve_summary import Ending, Reading
from search.curves.events import Signs
from search.loop.orders import Loop, Order, Taken, Task
from search.space import SearchSpace
from search.types import Allowance, Candidate, Observation, Spent, Values

HIGHEST, INITIAL, HURTS = 0.4, 2.0, 0.06
RATE = Values(learning_rate=0.1)
SPACE = SearchSpace(optimizer="sgd", guess=RATE, first_loss=INITIAL, sharpness=1.0, starts_over=True)
SETUP = SearchSetup(SPACE, BoConfig(), Budget(steps=1000), seed=0)
LEARNED = (1 - LITTLE_SHARE) * INITIAL
HIGH, WITH_MOMENTUM = Values(learning_rate=HIGHEST), Values(learning_rate=HIGHEST, momentum=0.9)
FAR, NEAR = (Values(learning_rate=share * HIGHEST / FAR_BELOW) for share in (0.99, 1.01))


def searched(*, start: float = 0.9 * INITIAL, diverged: bool = False, **changes: Any) -> Stage:
    """Return a stage that has probed, after a commit at `HIGH` that stayed, and ended at the loss `start`."""
    told = Observation(
        candidate_id=None, losses=(start,), step_seconds=(), bytes_sent=0, spent=Spent(steps=50), diverged=diverged
    )
    line = CommittedLine(initial=INITIAL, start_loss=start, before=Ending.of(told, Signs(), ()))
    probe = Candidate(id="1-0", stage=1, values=FAR, allowance=Allowance(steps=10), origin="move")
    reading = Reading.of(told.model_copy(update={"candidate_id": probe.id, "diverged": False}))
    stage = Stage(index=1, incumbent=HIGH, line=line, course=RateCourse(kept=HIGH))
    return replace(stage, **{"candidates": [probe], "readings": {probe.id: reading}} | changes)


def test_a_run_that_has_learned_little_starts_over_where_a_search_takes_a_far_lower_rate() -> None:
    assert falls_far(SETUP, searched(), FAR, Spent(steps=100))


PINNED = Steered(pinned=frozenset(["learning_rate"]))


@pytest.mark.parametrize(
    ("setup", "stage", "values", "steps"),
    [
        (SETUP, searched(), NEAR, 100),
        (SETUP, searched(course=RateCourse(kept=WITH_MOMENTUM)), FAR.model_copy(update={"momentum": 0.5}), 100),
        (SETUP, searched(), FAR, 500),
        (SETUP, searched(start=0.99 * LEARNED), FAR, 100),
        (SETUP, searched(diverged=True), FAR, 100),
        (SETUP, searched(candidates=[]), FAR, 100),
        (SETUP, searched(course=RateCourse(kept=None)), FAR, 100),
        (SETUP, searched(course=RateCourse(kept=HIGH, awakens=True)), FAR, 100),
        (SETUP, searched(steered=PINNED), FAR, 100),
        (SETUP, searched(steered=Steered(unsteered=FAR)), FAR, 100),
        (replace(SETUP, space=SPACE.model_copy(update={"starts_over": False})), searched(), FAR, 100),
        (replace(SETUP, config=BoConfig(start_over=False)), searched(), FAR, 100),
        (replace(SETUP, config=BoConfig(revisit="stages")), searched(), FAR, 100),
    ],
    ids=[
        "falls little",
        "changes its momentum too",
        "late",
        "learned much",
        "a commit was not finite",
        "no search",
        "nothing stayed",
        "wakes a net",
        "is pinned",
        "is steered",
        "cannot go back",
        "is told not to",
        "each stage searches",
    ],
)
def test_it_goes_on_where(setup: SearchSetup, stage: Stage, values: Values, steps: int) -> None:
    assert not falls_far(setup, stage, values, Spent(steps=steps))


class Fragile:
    """Carries out orders: once its model had a high rate, it learns little at any rate, and its gradients jump."""

    def __init__(self) -> None:
        self.state = (0.0, 0.0, 0)  # what it has learned, its highest rate, its steps
        self.slots = dict[Task, tuple[float, float, int]]()
        self.orders = list[Order]()

    def carry_out(self, order: Order) -> Taken | None:
        self.orders.append(order)
        if order.task in (Task.SNAPSHOT, Task.HOLD):
            self.slots[order.task] = self.state
        elif order.task in (Task.RESTORE, Task.KEEP):
            self.state = self.slots[Task.SNAPSHOT if order.task == Task.RESTORE else Task.HOLD]
        elif order.task == Task.START_OVER:
            self.state = (0.0, 0.0, 0)
        if not order.steps:
            return None
        losses, scales = zip(*(self._step(values.learning_rate) for values in order.steps), strict=True)
        return Taken(losses, [0.01] * len(losses), scales, [0.0] * len(losses))

    def _step(self, rate: float) -> tuple[float, float]:
        learned, highest, num_steps = self.state
        highest = max(highest, rate)
        is_hurt = highest > HURTS
        gain = 0.002 * (num_steps < 40) if rate > HURTS else 0.1 * rate if is_hurt else rate
        self.state = learned + gain, highest, num_steps + 1
        return INITIAL / (1 + learned), 10.0 if is_hurt and num_steps > 40 else 1.0


def trained(**config: Any) -> tuple[Loop, Fragile]:
    budget, model = Budget(steps=1000), Fragile()
    loop = Loop(strategies.build(BoConfig(**config), space=SPACE, seed=0, budget=budget), budget, clock=lambda: 0.0)
    loop.run(partial(model.carry_out))
    return loop, model


def test_the_run_goes_back_to_its_first_step_and_trains_at_a_quarter_of_the_rate_that_hurt() -> None:
    loop, model = trained()

    [over] = [each for each in loop.decisions if each.starts_over]
    [index] = [number for number, order in enumerate(model.orders) if order.task == Task.START_OVER]
    following = next(order for order in model.orders[index:] if order.steps)
    before = loop.decisions[over.stage - 1].values
    assert following.task == Task.COMMIT and following.steps[0].learning_rate == before.learning_rate / 4
    assert all(each.learning_rate < before.learning_rate for order in model.orders[index:] for each in order.steps)
    assert loop.spent().steps == 1000
    assert model.state[0] > trained(start_over=False)[1].state[0]
