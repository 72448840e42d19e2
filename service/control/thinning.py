"""Fewer points of a series, with its peaks."""

import math
from collections.abc import Sequence


def thin(values: Sequence[float | None], max_points: int) -> list[int]:
    """Return at most `max_points` ascending indices into `values`: both ends, and each bucket's extremes.

    A missing value counts as the highest: it marks a divergence. `max_points` is at least 2.
    """
    if len(values) <= max_points:
        return list(range(len(values)))
    last = len(values) - 1
    num_buckets = (max_points - 2) // 2
    kept = {0, last}
    for bucket in range(num_buckets):
        low, high = 1 + bucket * (last - 1) // num_buckets, 1 + (bucket + 1) * (last - 1) // num_buckets
        heights = {index: _height(values[index]) for index in range(low, high)}
        kept |= {min(heights, key=heights.__getitem__), max(heights, key=heights.__getitem__)}
    return sorted(kept)


def _height(value: float | None) -> float:
    return math.inf if value is None else value
