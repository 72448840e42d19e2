"""Rank the trials of a sweep, and prune them at rungs: pure functions of marks. Lower is better, in metric and cost.

A *mark* is a trial's measurement at a rung, or at its end. Marks are given in the order in which they were stored.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Mark(NamedTuple):
    """The measurement of a trial at a share of its budget."""

    trial: str
    rung: int  # counts from 0; the number of rungs: the end of the budget
    value: float | None  # of the objective's metric, turned so that less is better; None: it was not finite
    cost: float | None = None  # of the second objective; None: there is none


def fronts(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return for each point the number of its front: 0 where no other is as good in both, and better in one."""
    numbers = [0] * len(points)
    order = sorted(range(len(points)), key=lambda index: points[index])
    layers: list[float] = []  # of each front the lowest second coordinate so far, which grows from front to front
    last: tuple[tuple[float, float], int] | None = None
    for index in order:
        point = points[index]
        if last is not None and last[0] == point:  # equal points share a front
            numbers[index] = last[1]
            continue
        number = next((front for front, lowest in enumerate(layers) if point[1] < lowest), len(layers))
        layers[number : number + 1] = [point[1]]
        numbers[index], last = number, (point, number)
    return numbers


def places(marks: Sequence[Mark]) -> list[int]:
    """Return the order of the marks, best first, as indices: by front where there is a cost, then by value.

    What is not finite comes last; of equals the earlier one comes first.
    """
    points = _points(marks)
    keys = [(math.isinf(point[0]), front, point) for point, front in zip(points, fronts(points), strict=True)]
    return sorted(range(len(marks)), key=lambda index: keys[index])


def _points(marks: Sequence[Mark]) -> list[tuple[float, float]]:
    return [(_worst(mark.value), 0.0 if mark.cost is None else mark.cost) for mark in marks]


def _worst(value: float | None) -> float:
    return math.inf if value is None or not math.isfinite(value) else value


def pruned(marks: Sequence[Mark], samples: set[str], *, num_rungs: int, reduction: int) -> dict[str, int]:
    """Return, by trial, the rung at which each sample that is behind must end. Arms are compared, but never end.

    Among the marks at a rung up to its own, a sample must be no worse than the best 1/`reduction`, or than the best
    (asynchronous successive halving; Li et al., 2020). Equals thus go on together. Later marks change no decision.
    """
    at_rung: dict[int, list[Mark]] = {}
    ended: dict[str, int] = {}
    for mark in marks:
        if mark.rung >= num_rungs:
            continue
        there = at_rung.setdefault(mark.rung, [])
        there.append(mark)
        if mark.trial in samples and mark.trial not in ended and not _is_kept(there, reduction):
            ended[mark.trial] = mark.rung
    return ended


def _is_kept(there: Sequence[Mark], reduction: int) -> bool:
    """Return whether the last of these goes on.

    Within a front the better of a mark's two ranks, by value and by cost, decides. The value alone would leave only the
    costly end.
    """
    if math.isinf(_worst(there[-1].value)):
        return False
    finite = [point for point in _points(there) if not math.isinf(point[0])]
    values, costs = (sorted(each) for each in zip(*finite, strict=True))
    keys = [
        (front, min(bisect_left(values, value), bisect_left(costs, cost)))
        for (value, cost), front in zip(finite, fronts(finite), strict=True)
    ]
    most = max(1, len(there) // reduction)
    return keys[-1] <= sorted(keys)[:most][-1]


class Standing(NamedTuple):
    """A trial as far as it got."""

    trial: str
    mark: Mark | None  # the last one; None: it has none yet
    is_lost: bool = False  # it diverged, or failed


def ranking(standings: Sequence[Standing]) -> list[str]:
    """Return the trials, best first: those that got to a later rung come first, and among equals the better ones.

    Then come those without a mark, in their order, and those that diverged or failed.
    """
    by_rung: dict[int, list[Mark]] = {}
    for each in standings:
        if each.mark is not None and not each.is_lost:
            by_rung.setdefault(each.mark.rung, []).append(each.mark)
    ranked = [marks[index].trial for _, marks in sorted(by_rung.items(), reverse=True) for index in places(marks)]
    unmarked = [each.trial for each in standings if each.mark is None and not each.is_lost]
    return [*ranked, *unmarked, *(each.trial for each in standings if each.is_lost)]


def best_trade_offs(ends: Sequence[Mark]) -> set[str]:
    """Return the trials on the front: of those with an end, each that no other beats in metric and cost."""
    known = [mark for mark in ends if mark.value is not None and math.isfinite(mark.value)]
    points = [(mark.value or 0.0, mark.cost or 0.0) for mark in known]
    return {mark.trial for mark, front in zip(known, fronts(points), strict=True) if front == 0}


def saved_share(rungs: Sequence[float], ended: Mapping[str, int], num_trials: int) -> float:
    """Return the share of all trials' budgets that was saved by ending some at a rung."""
    return sum(1 - rungs[rung] for rung in ended.values()) / num_trials if num_trials else 0.0
