"""Estimate the losses of the averaged parameters from the losses of workers that train apart.

Between two averages, a worker fits its own data: its losses fall while those of the average may rise (client drift;
Karimireddy et al., SCAFFOLD, ICML 2020, section 3). The first step after an average shows by how much, since its loss
is that of the shared parameters.
"""

import math
from collections.abc import Sequence

import numpy as np

#: Workers drift apart if a probe's losses rise at averages by this many standard errors.
CLEAR = 2.0
#: The median distance of two normal draws, in standard deviations.
MEDIAN_DISTANCE = 0.954


def first_steps(num_steps: int, *, period: int, steps_to_meeting: int | None) -> range:
    """Return which of `num_steps` steps, from 0, are the first after an average; none if workers train as one.

    Args:
        num_steps: the steps that were taken.
        period: steps between two averages.
        steps_to_meeting: steps left until the next average; 0: workers have just averaged; None: not known.
    """
    if period == 1 or steps_to_meeting is None:
        return range(0)
    return range((num_steps + steps_to_meeting) % period, num_steps, period)


def client_drift(
    losses: Sequence[float], firsts: Sequence[int], beside: Sequence[float] | None = None, *, errors: float = CLEAR
) -> float:
    """Return the mean rise of `losses` right after averages; 0 if it is below `errors` standard errors, or unknown.

    `beside` are the losses of workers that train as one on the same batches. If they reach an average, the difference
    of the two curves is used, which scatters less.
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
    quantile = errors * (1 + (errors**2 + 1) / (4 * max(1, num_free)))  # Student's t to the first order
    return rise if rise > quantile * error else 0.0


def as_averaged(losses: Sequence[float], firsts: Sequence[int], rise: float) -> tuple[float, ...]:
    """Return the losses of the workers' average: higher by `rise`, except right after an average."""
    return tuple(loss if index in firsts else loss + rise for index, loss in enumerate(losses))
