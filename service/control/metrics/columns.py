"""Points of a series as compressed columns: differences, byte shuffling, zlib."""

import math
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

FORMAT = 1
_WORD = 8


class Point(NamedTuple):
    """A measured value, None if it was not finite, with its seconds on the training clock."""

    step: int
    seconds: float
    value: float | None


def encode(points: Sequence[Point]) -> bytes:
    """Return `points`, of ascending steps, to the bit; a format byte comes first."""
    steps, seconds, values = zip(*points, strict=True)
    columns = (
        _differences(np.array(steps, np.int64)),
        _differences(np.array(seconds, np.float64)),
        np.array(values, np.float64),  # None becomes NaN
    )
    return bytes([FORMAT]) + zlib.compress(b"".join(map(_shuffled, columns)), level=1)  # 6: twice the time, 1.5 % less


def decode(data: bytes) -> list[Point]:
    """Decode the result of `encode`. Raises ValueError for another format."""
    return [
        Point(step, at, None if math.isnan(value) else value)
        for step, at, value in zip(*(column.tolist() for column in _columns(data)), strict=True)
    ]


def means(data: bytes, *, num_steps: int, num_parts: int) -> dict[int, float | None]:
    """Return the mean value of each of `num_parts` equal spans of `num_steps` that has points; None: not finite."""
    steps, _, values = _columns(data)
    parts, is_finite = np.minimum(steps * num_parts // num_steps, num_parts - 1), np.isfinite(values)
    counts = np.bincount(parts, is_finite, num_parts)
    totals = np.bincount(parts, np.where(is_finite, values, 0.0), num_parts)
    return {part: totals[part].item() / counts[part].item() if counts[part] else None for part in set(parts.tolist())}


def _columns(data: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if data[0] != FORMAT:
        raise ValueError(f"points are in format {data[0]}, this release reads {FORMAT}")
    content = np.frombuffer(zlib.decompress(data[1:]), np.uint8).reshape(3, _WORD, -1)
    steps, seconds, values = np.ascontiguousarray(content.swapaxes(1, 2)).view(np.uint64)[..., 0]
    return np.cumsum(steps).view(np.int64), np.cumsum(seconds).view(np.float64), values.view(np.float64)


def _differences(column: np.ndarray) -> np.ndarray:
    """Return the differences of the words' bits, modulo 2^64: small where words are near each other."""
    return np.diff(column.view(np.uint64), prepend=np.uint64(0))


def _shuffled(column: np.ndarray) -> bytes:
    """Return the words' lowest bytes, then the next ones, and so on."""
    return column.view(np.uint8).reshape(-1, _WORD).T.tobytes()
