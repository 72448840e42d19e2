"""Points of one series as compressed columns: differences, bytes of equal weight together, zlib."""

import math
import zlib
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

FORMAT = 1
_WORD = 8
_MASK = 2**64 - 1


class Sample(NamedTuple):
    """A measured value; seconds on the training clock. None: it was not finite."""

    step: int
    seconds: float
    value: float | None


def encode(samples: Sequence[Sample]) -> bytes:
    """Return `samples`, of ascending steps, to the bit; a format byte comes first."""
    values = array("d", (math.nan if each.value is None else each.value for each in samples))
    columns = [
        _differences(array("q", (each.step for each in samples))),
        _differences(array("d", (each.seconds for each in samples))),
        array("Q", values.tobytes()),
    ]
    words = (column.tobytes() for column in columns)
    return bytes([FORMAT]) + zlib.compress(b"".join(each[place::_WORD] for each in words for place in range(_WORD)))


def decode(data: bytes) -> list[Sample]:
    """Return what `encode` was given; raises ValueError for another format."""
    if data[0] != FORMAT:
        raise ValueError(f"points are in format {data[0]}, this release reads {FORMAT}")
    content = zlib.decompress(data[1:])
    size = len(content) // 3
    steps, seconds, values = (_unshuffled(content[start : start + size]) for start in range(0, 3 * size, size))
    return [
        Sample(step, at, None if math.isnan(value) else value)
        for step, at, value in zip(
            array("q", _sums(steps).tobytes()), array("d", _sums(seconds).tobytes()), array("d", values), strict=True
        )
    ]


def _differences(column: "array[int] | array[float]") -> "array[int]":
    """Return the differences of the words' bits, modulo 2^64: small where words are near each other."""
    bits = array("Q", column.tobytes())
    return array("Q", [*bits[:1], *((after - before) & _MASK for before, after in pairwise(bits))])


def _sums(words: bytes) -> "array[int]":
    return array("Q", accumulate(array("Q", words), lambda total, each: (total + each) & _MASK))


def _unshuffled(content: bytes) -> bytes:
    words, length = bytearray(len(content)), len(content) // _WORD
    for place in range(_WORD):
        words[place::_WORD] = content[place * length : (place + 1) * length]
    return bytes(words)
