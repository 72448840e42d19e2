"""Pacing: how far probes and commits go, and when a commit is looked at. Pure functions of the budget.

A budget without seconds reads no clock.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from search.budget import spending
from search.budget.link import StepCost
from search.config import Budget
from search.protocol import PROBE_PARTS
from search.types import Allowance, Candidate, Spent, Values

#: Steps of a first push, while the cost of a step with these values is unknown.
FIRST_PUSH = 4
#: The share of a commit between two looks at it, and the least number of steps between them.
LOOK_SHARE, LEAST_LOOK_STEPS = 0.02, 10
NO_LIMIT = 10**9


class ProbePart(NamedTuple):
    """A part of a probe, at whose end its strategy is asked about it."""

    until: Allowance  # the totals at which it ends
    least: int  # steps of the probe by then, whatever the caps say
    is_last: bool


def probe_parts(allowance: Allowance, opened: Spent, budget: Budget) -> Iterator[ProbePart]:
    """Yield the parts of a probe that may spend `allowance`, in a run that had spent `opened` when it began."""
    for part in PROBE_PARTS:
        allowed = part_of(allowance, part)
        until = within(until_totals(opened, allowed), budget)
        yield ProbePart(until, least=allowed.min_steps, is_last=part == PROBE_PARTS[-1])


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


def steps_left(until: Allowance, spent: Spent, cost: StepCost | None) -> float:
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


def probe_values(candidate: Candidate, own: Spent, cost: StepCost | None, num_steps: int) -> Values:
    """Return the values of the step `num_steps` further on in a probe that has spent `own`.

    A finalist's rate falls as a run's does.
    """
    part = spending.part_spent(candidate.allowance, after(num_steps, own, cost))
    return candidate.values.model_copy(update={"learning_rate": candidate.learning_rate_at(part)})
