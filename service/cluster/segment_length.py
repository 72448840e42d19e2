"""Choose how many steps to push at once. Pure functions of the budget: one without seconds reads no clock."""

import math
from typing import Any

from search.budget import spending
from search.budget.link import StepCost, steps_that_fit
from search.config import Budget
from search.types import Allowance, Piece, Spent, Values
from service.cluster.measured import bytes_per_worker
from trainers.segment import Segment, SegmentResult

#: Steps of a first push, while the cost of a step with these values is unknown.
FIRST_PUSH = 4
#: Steps of a push under a budget in steps or bytes. It is constant, because no decision may read a clock there.
CLOCKLESS_PUSH = 10
#: The share of a commit between two looks at it, and the least number of steps between them.
LOOK_SHARE, LEAST_LOOK_STEPS = 0.02, 10
#: The longest push under a budget in seconds: a cancel takes effect only between pushes. Slow steps are grouped, up to
#: `FIRST_PUSH` steps and `MAX_SLOW_PUSH_S`. The first step of a push shows no cosine, so with pushes of one step, a
#: learning rate that is too low would never rise.
MAX_PUSH_S, MAX_SLOW_PUSH_S = 0.5, 10.0
NO_LIMIT = 10**9
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


def until_totals(spent: Spent, allowance: Allowance) -> Allowance:
    """Return the totals at which a probe ends that may spend `allowance`."""
    return Allowance(
        steps=_add(spent.steps, allowance.steps),
        bytes=_add(spent.bytes, allowance.bytes),
        seconds=_add(spent.seconds, allowance.seconds),
    )


def part_of(allowance: Allowance, part: float) -> Allowance:
    """Return `part`, in (0, 1], of a probe's allowance, in whole steps and bytes."""
    return Allowance(
        steps=None if allowance.steps is None else math.ceil(part * allowance.steps),
        bytes=None if allowance.bytes is None else math.ceil(part * allowance.bytes),
        seconds=None if allowance.seconds is None else part * allowance.seconds,
        min_steps=math.ceil(part * allowance.min_steps),
    )


def _add(total: float, more: float | None) -> float | None:
    return None if more is None else total + more


def within(until: Allowance, budget: Budget) -> Allowance:
    """Cap `until` by the run's whole budget."""
    return Allowance(
        steps=_least(until.steps, budget.steps),
        bytes=_least(until.bytes, budget.bytes),
        seconds=_least(until.seconds, budget.seconds),
    )


def _least(*caps: float | None) -> float | None:
    given = [cap for cap in caps if cap is not None]
    return min(given) if given else None


def is_reached(until: Allowance, spent: Spent, cost: StepCost | None) -> bool:
    """Return whether another step would exceed a cap: for seconds by half a step, for steps and bytes at all."""
    cost = cost or StepCost(bytes=0, seconds=0)
    return (
        (until.steps is not None and spent.steps >= until.steps)
        or (until.bytes is not None and spent.bytes + cost.bytes > until.bytes)
        or (until.seconds is not None and spent.seconds + cost.seconds / 2 >= until.seconds)
    )


def after(num_steps: int, spent: Spent, cost: StepCost | None) -> Spent:
    """Return the totals after `num_steps` more, as far as the cost of a step is known."""
    cost = cost or StepCost(bytes=0, seconds=0)
    return Spent(
        steps=spent.steps + num_steps,
        bytes=spent.bytes + int(num_steps * cost.bytes),
        seconds=spent.seconds + num_steps * cost.seconds,
    )


def next_push(until: Allowance, spent: Spent, cost: StepCost | None, *, most: int) -> int:
    """Return how many steps to push next, in [1, `most`], without passing a cap of `until`."""
    limits: list[float] = [most, _steps_left(until, spent, cost)]
    if cost is None:
        limits.append(FIRST_PUSH)
    elif until.seconds is None:
        limits.append(CLOCKLESS_PUSH)
    elif cost.seconds > 0:
        slow = min(FIRST_PUSH, MAX_SLOW_PUSH_S / cost.seconds)
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
    return max(least, int(min(math.ceil(min(long, NO_LIMIT)), _steps_left(until, spent, cost))))


def _steps_left(until: Allowance, spent: Spent, cost: StepCost | None) -> float:
    """Return the number of steps until a cap of `until` is reached, as far as their cost is known."""
    cost, limits = cost or StepCost(bytes=0, seconds=0), [float(NO_LIMIT)]
    if until.steps is not None:
        limits.append(until.steps - spent.steps)
    if until.bytes is not None and cost.bytes > 0:
        limits.append((until.bytes - spent.bytes) / cost.bytes)
    if until.seconds is not None and cost.seconds > 0:
        limits.append(math.ceil((until.seconds - spent.seconds) / cost.seconds - 0.5))
    return min(limits)


def look_steps(until: Allowance, spent: Spent, cost: StepCost | None, *, num_done: int) -> int:
    """Return the number of steps between two looks at a commit with `num_done` steps trained."""
    cost = cost or StepCost(bytes=0, seconds=0)
    left = [
        (end - now) / each
        for end, now, each in (
            (until.steps, spent.steps, 1.0),
            (until.bytes, spent.bytes, cost.bytes),
            (until.seconds, spent.seconds, cost.seconds),
        )
        if end is not None and each > 0
    ]
    whole = num_done + max(0.0, min(left, default=0.0))
    return max(LEAST_LOOK_STEPS, math.ceil(LOOK_SHARE * whole))
