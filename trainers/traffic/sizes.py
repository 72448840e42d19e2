"""Sizes of what compressors send, from the shapes alone. Pure Python: costs are predicted with it."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, starmap

WORD_BYTES = 4
#: What a payload's values are to be multiplied by, a float32: of float16 a power of two, of signs their magnitude.
UNIT_BYTES = 4


def as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Return the rows and columns of a parameter seen as a matrix: the first dimension x all others."""
    return shape[0], math.prod(shape[1:])


def is_worth_factors(shape: Sequence[int], *, rank: int, min_rate: float = 2.0) -> bool:
    """Return whether two factors of `rank` take less than 1 / `min_rate` of the entries (Vogels et al., 2019)."""
    if len(shape) < 2:
        return False
    num_rows, num_columns = as_matrix(shape)
    return num_rows * num_columns > min_rate * (num_rows + num_columns) * rank


def num_selected(num_entries: int, ratio: float) -> int:
    """Return k, the entries to send of `num_entries`: at least one."""
    return max(1, math.ceil(round(ratio * num_entries, 6)))  # 0.1 * 30 is a little more than 3


def code_bits(levels: int) -> int:
    """Return the bits of a code that tells -`levels` .. `levels` apart, at most 127: 2, 4 or 8."""
    return next(bits for bits in (2, 4, 8) if 2 * levels < 2**bits)


def whole_words(num_bytes: int) -> int:
    """Return the bytes with padding: payloads lie one behind the other, and are viewed as numbers of a word."""
    return -(-num_bytes // WORD_BYTES) * WORD_BYTES


def consecutive(lengths: Iterable[int]) -> Iterator[slice]:
    """Return the ranges of parts of these lengths, one behind the other."""
    return starmap(slice, pairwise(accumulate(lengths, initial=0)))


@dataclass(frozen=True)
class CodedLayout:
    """A payload of scales, and behind them one code for each entry, packed. Before them may be a unit, a float32."""

    num_entries: int
    bits: int
    num_scales: int = 0
    bytes_of_scale: int = WORD_BYTES  # float32; 2: float16
    unit_bytes: int = 0  # `UNIT_BYTES`: scales are multiples of a unit

    @property
    def scale_bytes(self) -> int:
        return self.bytes_of_scale * self.num_scales

    @property
    def num_bytes(self) -> int:
        """The length of a payload."""
        return whole_words(self.unit_bytes + self.scale_bytes + -(-self.bits * self.num_entries // 8))
