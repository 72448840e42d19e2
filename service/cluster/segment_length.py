"""Choose how many steps to push at once. Pure functions of the budget: one without seconds reads no clock."""

import math
from typing import Any

from search.budget import spending
from search.budget.link import StepCost, steps_that_fit
from search.config import Budget
from search.loop import pacing
from search.types import Allowance, Piece, Spent, Values
from service.cluster.measured import bytes_per_worker
from trainers.segment import Segment, SegmentResult

#: Steps of a push under a budget in steps or bytes. It is constant, because no decision may read a clock there.
CLOCKLESS_PUSH = 10
#: The longest push under a budget in seconds: a cancel takes effect only between pushes. Slow steps are grouped, up to
#: `FIRST_PUSH` steps and `MAX_SLOW_PUSH_S`, since every push is a call to all workers, and a record.
MAX_PUSH_S, MAX_SLOW_PUSH_S = 0.5, 10.0
#: The approximate number of linear pieces of a changing rate, however long the run, since a schedule stores each.
MOST_PIECES = 1024


def cost_of(result: SegmentResult, known: StepCost | None, *, round_steps: int = 1) -> StepCost | None:
    """Update the `known` cost of a step by `result`; None: still unknown.

    The first step may calibrate, so it counts only if it is the only one. Workers that average every `round_steps`
    steps send nothing in between. A push shorter than a round is therefore weighted by its share of a round.
    """
    seconds = result.step_seconds[1:] or result.step_seconds
    if not seconds:
        return known
    num_steps = len(result.step_seconds)
    sent, took = bytes_per_worker(result.bytes_sent) / num_steps, sum(seconds) / len(seconds)
    if known is None:
        return StepCost(bytes=sent, seconds=took)
    part = min(1.0, num_steps / round_steps)
    return StepCost(
        bytes=known.bytes + part * (sent - known.bytes), seconds=known.seconds + part * (took - known.seconds)
    )


def segment(start: Values, end: Values, num_steps: int) -> Segment:
    """Return a segment of `num_steps` with the values `start`, whose rate changes linearly to that of `end`."""
    ramps = end.learning_rate != start.learning_rate
    return Segment(
        num_steps=num_steps,
        learning_rate=start.learning_rate,
        final_learning_rate=end.learning_rate if ramps else None,
        level=start.level,
        **start.settings,
    )


def part_of_piece(piece: Piece, values: Values, *, step: int, num_steps: int) -> Segment:
    """Return the `num_steps` of `piece` from `step` on, with `values` except for the rate."""
    course: dict[str, Any] = {}
    if piece.final_learning_rate != piece.learning_rate:
        piece_steps = piece.piece_steps or piece.num_steps
        course = {
            "final_learning_rate": piece.final_learning_rate,
            "piece_steps": None if num_steps == piece_steps else piece_steps,
            "piece_from": step - piece.step,
        }
    return Segment(
        num_steps=num_steps, learning_rate=piece.learning_rate, level=values.level, **course, **values.settings
    )


def next_push(until: Allowance, spent: Spent, cost: StepCost | None, *, most: int) -> int:
    """Return how many steps to push next, in [1, `most`], without passing a cap of `until`."""
    limits: list[float] = [most, pacing.steps_left(until, spent, cost)]
    if cost is None:
        limits.append(pacing.FIRST_PUSH)
    elif until.seconds is None:
        limits.append(CLOCKLESS_PUSH)
    elif cost.seconds > 0:
        slow = min(pacing.FIRST_PUSH, MAX_SLOW_PUSH_S / cost.seconds)
        limits.append(max(math.ceil(MAX_PUSH_S / cost.seconds - 0.5), slow))
    return max(1, int(min(limits)))


def next_piece(until: Allowance, spent: Spent, cost: StepCost | None, *, budget: Budget, least: int) -> int:
    """Return the number of steps in the next linear piece of a changing rate: `least`, or more in a long run.

    A push has `least` steps and is short, so that a cancel takes effect soon. In a run of many pushes, a piece spans
    several, so that the schedule stays small.
    """
    if cost is None:
        return least
    share = spending.scale(spending.caps(budget), 1 / MOST_PIECES)
    long = steps_that_fit(share, cost)
    return max(least, int(min(math.ceil(min(long, pacing.NO_LIMIT)), pacing.steps_left(until, spent, cost))))
