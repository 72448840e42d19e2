"""Means over seeds, with 95 % confidence intervals."""

import math
from collections.abc import Iterable
from statistics import fmean, stdev

from service.wire.views import Estimate

CONFIDENCE = 0.95


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """Return the mean of what is known, with Student's interval from two values on; None where nothing is known."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean, num = fmean(known), len(known)
    half = None if num < 2 else t_quantile(CONFIDENCE, num - 1) * stdev(known) / math.sqrt(num)
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return Estimate(num_seeds=num, mean=mean, low=low, high=high)


def t_quantile(confidence: float, freedom: int) -> float:
    """Return t such that Student's t with `freedom` degrees lies in [-t, t] with probability `confidence`.

    The probability is Abramowitz and Stegun's finite sum (26.7.3, 26.7.4) in the angle atan(t / sqrt(freedom)),
    in which it grows from 0 at 0 to 1 at a right angle; the angle is found by bisection.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):  # to the last bit of the angle
        angle = (low + high) / 2
        low, high = (angle, high) if _probability(angle, freedom) < confidence else (low, angle)
    return math.sqrt(freedom) * math.tan((low + high) / 2)


def _probability(angle: float, freedom: int) -> float:
    """Return A(t | freedom) for t = sqrt(freedom) tan(angle)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    is_odd = freedom % 2
    term, total = (cosine, 0.0) if is_odd else (1.0, 0.0)
    for index in range(is_odd, freedom - 1, 2):  # the powers of the cosine
        total += term
        term *= cosine**2 * (index + 1) / (index + 2)
    return 2 / math.pi * (angle + sine * total) if is_odd else sine * total
