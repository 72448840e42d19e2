"""Warm-up steps before a run's clock starts. Libraries load and connections open in them; they are discarded."""

import math

from search.budget.link import StepCost
from search.types import Values
from service.cluster.measured import bytes_per_worker
from service.cluster.slots import STAGE
from trainers.segment import Evaluation, Segment, SegmentResult
from trainers.training.group import Group

NUM_STEPS = 3
#: Steps after which a metric that was undefined at first, such as a precision, may be defined: `wiretune check` trains
#: about as many.
LATER_STEPS = 20


def warm_up(group: Group, values: Values, num_steps: int = NUM_STEPS) -> SegmentResult:
    """Train `num_steps` with `values`, and restore the state before them."""
    group.snapshot(STAGE)
    result = _train(group, values, num_steps)
    group.restore(STAGE)
    return result


def evaluate_later(group: Group, values: Values) -> tuple[SegmentResult, Evaluation]:
    """Train a warm-up with `values`, evaluate, and restore the state before."""
    group.snapshot(STAGE)
    result = _train(group, values, LATER_STEPS)
    evaluation = group.evaluate()
    group.restore(STAGE)
    return result, evaluation


def _train(group: Group, values: Values, num_steps: int) -> SegmentResult:
    segment = Segment(num_steps=num_steps, learning_rate=values.learning_rate, level=values.level, **values.settings)
    return group.run(segment)


def step_cost(result: SegmentResult) -> StepCost | None:
    """Return the cost of a warm-up step: that of the fastest, which other work delayed least. None if there is none.

    The first step counts only if it is the only one: on a GPU it may end before the device has updated the parameters.
    """
    if not result.step_seconds:
        return None
    sent = bytes_per_worker(result.bytes_sent) / len(result.step_seconds)
    return StepCost(bytes=sent, seconds=min(result.step_seconds[1:] or result.step_seconds))


def alone_seconds(result: SegmentResult) -> float | None:
    """Return the most seconds that a step takes a worker that exchanges nothing; None if there is no step.

    It is the fastest step's time, or the mean compute if that is less: the first step may load libraries in it.
    """
    step = step_cost(result)
    if step is None:
        return None
    mean = math.inf if result.times is None else result.times.compute / len(result.step_seconds)
    return min(step.seconds, mean)
