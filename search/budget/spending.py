"""Arithmetic on budgets, allowances and totals. Only units that the budget caps are ever read.

*Amounts* map such a unit to a quantity. So nothing reads a clock under a budget in steps or bytes.
"""

import math
from collections.abc import Iterable, Mapping

from search.config import Budget
from search.curves.curve_summary import Reading
from search.types import Allowance, Decision, Spent

UNITS = ("seconds", "steps", "bytes")
Amounts = Mapping[str, float]
#: If further stages follow, the end of an open commit moves with the budget by at most this factor.
MOST_STRETCHED = 2


def caps(limits: Budget | Allowance) -> Amounts:
    """Return the caps of a budget, or of a probe's allowance."""
    given = {unit: getattr(limits, unit) for unit in UNITS}
    return {unit: float(cap) for unit, cap in given.items() if cap is not None}


def amounts(budget: Budget, spent: Spent) -> Amounts:
    """Return `spent` in the units that `budget` caps."""
    return {unit: float(getattr(spent, unit)) for unit in caps(budget)}


def fraction_spent(budget: Budget, spent: Spent) -> float:
    """Return the largest share of a cap that is spent, in [0, 1]."""
    used = amounts(budget, spent)
    return min(1.0, max(used[unit] / cap for unit, cap in caps(budget).items()))


def decay_factor(fraction: float, *, share: float) -> float:
    """Return the factor of the rate: 1, then linearly down to 0 over the last `share` of the budget."""
    return min(1.0, (1 - fraction) / share) if share else 1.0


def remaining(budget: Budget, spent: Spent) -> Amounts:
    """Return what is left under every cap, at least 0."""
    used = amounts(budget, spent)
    return {unit: max(0.0, cap - used[unit]) for unit, cap in caps(budget).items()}


def scale(quantities: Amounts, factor: float) -> Amounts:
    return {unit: factor * quantity for unit, quantity in quantities.items()}


def least(first: Amounts, second: Amounts) -> Amounts:
    """Return the smaller quantity in each unit of `first`."""
    return {unit: min(quantity, second[unit]) for unit, quantity in first.items()}


def most(first: Amounts, second: Amounts) -> Amounts:
    """Return the larger quantity in each unit of `first`."""
    return {unit: max(quantity, second[unit]) for unit, quantity in first.items()}


def subtract(first: Amounts, second: Amounts) -> Amounts:
    """Return `first` - `second` in each unit of `first`, at least 0."""
    return {unit: max(0.0, quantity - second[unit]) for unit, quantity in first.items()}


def fits(needed: Amounts, room: Amounts) -> bool:
    return all(quantity <= room[unit] for unit, quantity in needed.items())


def minus(after: Spent, before: Spent) -> Spent:
    """Return what was spent between two totals."""
    return Spent(
        steps=after.steps - before.steps,
        bytes=after.bytes - before.bytes,
        seconds=after.seconds - before.seconds,
    )


def later(first: Spent, second: Spent) -> Spent:
    """Return the larger of two totals, unit by unit."""
    return Spent(
        steps=max(first.steps, second.steps),
        bytes=max(first.bytes, second.bytes),
        seconds=max(first.seconds, second.seconds),
    )


def plus(first: Spent, second: Spent) -> Spent:
    return Spent(
        steps=first.steps + second.steps,
        bytes=first.bytes + second.bytes,
        seconds=first.seconds + second.seconds,
    )


def measured_step_cost(budget: Budget, reading: Reading) -> Amounts:
    """Return the mean cost of a step of `reading`, which has at least one."""
    return _costs(reading, caps(budget))


def _costs(reading: Reading, units: Iterable[str]) -> Amounts:
    cost = {
        "steps": 1.0,
        "bytes": reading.bytes_sent / reading.num_steps,
        "seconds": reading.step_seconds or 0.0,
    }
    return {unit: cost[unit] for unit in units}


def num_allowances(allowance: Allowance, reading: Reading) -> float:
    """Return what a probe has spent, as a multiple of its `allowance`; 0 without a step, and if nothing is capped.

    A cap of 0 counts as 1. All probes of a rung have the same allowance, so they still compare.
    """
    if not reading.num_steps:
        return 0.0
    allowed = {unit: quantity or 1.0 for unit, quantity in caps(allowance).items()}
    return reading.num_steps / num_steps(allowed, _costs(reading, allowed))


def part_spent(allowance: Allowance, own: Spent) -> float:
    """Return the share, in [0, 1], of its `allowance` that a probe with the cost `own` so far has spent.

    It is at most the share of `min_steps` that the probe has done.
    """
    parts = [getattr(own, unit) / cap for unit, cap in caps(allowance).items() if cap]
    return min(1.0, max(parts, default=1.0), own.steps / allowance.min_steps)


def num_steps(available: Amounts, cost: Amounts) -> float:
    """Return how many steps of `cost` fit into `available`; infinite if a step costs nothing."""
    return min((available[unit] / cost[unit] for unit in cost if cost[unit] > 0), default=float("inf"))


def allowance(quantities: Amounts, *, min_steps: int) -> Allowance:
    """Return a probe's allowance. A cap below one step or byte becomes one."""
    whole = {unit: max(1, round(quantities[unit])) for unit in ("steps", "bytes") if unit in quantities}
    return Allowance(**whole, seconds=quantities.get("seconds"), min_steps=min_steps)


def commit_end(budget: Budget, spent: Spent, part: float) -> Allowance:
    """Return the totals at which a commit ends that takes the share `part` of what is left; 1: the budget's."""
    if part >= 1:
        return Allowance(steps=budget.steps, bytes=budget.bytes, seconds=budget.seconds)
    used = amounts(budget, spent)
    ends = {unit: used[unit] + part * left for unit, left in remaining(budget, spent).items()}
    whole = {unit: round(ends[unit]) for unit in ("steps", "bytes") if unit in ends}
    return Allowance(**whole, seconds=ends.get("seconds"))


def stretched(decision: Decision, before: Budget, budget: Budget) -> Decision:
    """Return the decision of an open commit after the budget `before` has grown to `budget`.

    The forecast, which was of the old end, goes with it.
    """
    until = stretched_end(decision.commit_until, before, budget, has_stages=decision.has_stages)
    is_same = until == decision.commit_until
    return decision if is_same else decision.model_copy(update={"commit_until": until, "forecast": None})


def stretched_end(until: Allowance, before: Budget, budget: Budget, *, has_stages: bool) -> Allowance:
    """Return a commit's end after the budget `before` has grown to `budget`: each cap that was `before`'s moves.

    Where the strategy `has_stages`, it at most doubles, as commits do, and further stages take the rest.
    """
    most = MOST_STRETCHED if has_stages else math.inf
    moving = [(unit, cap) for unit, cap in before if cap is not None and getattr(until, unit) == cap]
    return until.model_copy(update={unit: min(getattr(budget, unit), most * cap) for unit, cap in moving})
