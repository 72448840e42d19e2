"""The losses of workers that train apart, as the average of their parameters has them.

A worker with data of its own fits these between two averages: its losses fall while those of the average may rise
(client drift; Karimireddy et al., SCAFFOLD, ICML 2020, section 3). The first step after an average shows by how much,
since its loss is of parameters that all share.
"""

import math
from collections.abc import Sequence

import numpy as np

#: Losses of a probe that rise at averages by so many standard errors say that workers drift apart.
CLEAR = 2.0
#: Of a normal distribution: the median distance of two draws, in standard deviations.
MEDIAN_DISTANCE = 0.954


def first_steps(num_steps: int, *, period: int, steps_to_meeting: int | None) -> range:
    """Return which of `num_steps` steps, from 0, are the first after an average; none where workers train as one.

    Args:
        num_steps: that were taken.
        period: steps from one average to the next.
        steps_to_meeting: until the next average when they end; 0: they have just averaged; None: not known.
    """
    if period == 1 or steps_to_meeting is None:
        return range(0)
    return range((num_steps + steps_to_meeting) % period, num_steps, period)


def client_drift(
    losses: Sequence[float], firsts: Sequence[int], beside: Sequence[float] | None = None, *, errors: float = CLEAR
) -> float:
    """Return by how much `losses` rise, on the mean, where workers have averaged; 0: by less than `errors`, or never.

    `errors` are standard errors of that mean. `beside` are the losses of workers that train as one on the same batches.
    If they last until an average, the difference is looked at, which batches scatter less.
    """
    values = np.asarray(losses, dtype=np.float64)
    if beside is not None and any(0 < first < len(beside) for first in firsts):
        num_both = min(len(losses), len(beside))
        values = values[:num_both] - np.asarray(beside[:num_both], dtype=np.float64)
    averages = [first for first in firsts if 0 < first < len(values)]
    if not averages or not np.isfinite(values).all():
        return 0.0
    width = max(1, max(np.diff([0, *averages])) // 2)
    before = [values[max(0, first - width) : first] for first in averages]
    rise = float(np.mean([values[first] - part.mean() for first, part in zip(averages, before, strict=True)]))
    num_free = sum(len(part) - 1 for part in before)
    noise = (
        math.sqrt(sum(float(part.var()) * len(part) for part in before) / num_free)
        if num_free > 1
        else float(np.median(np.abs(np.diff(values)))) / MEDIAN_DISTANCE
    )
    error = noise * math.sqrt((1 + 1 / width) / len(averages))
    quantile = errors * (1 + (errors**2 + 1) / (4 * max(1, num_free)))  # Student's, of so few: to the first order
    return rise if rise > quantile * error else 0.0


def as_averaged(losses: Sequence[float], firsts: Sequence[int], rise: float) -> tuple[float, ...]:
    """Return the losses that the average of the workers would have had: a `rise` higher, but right after one."""
    return tuple(loss if index in firsts else loss + rise for index, loss in enumerate(losses))
