"""How many bytes each compressor's payload takes, from the shapes alone. Pure Python: costs are predicted with it."""

import math
from collections.abc import Sequence

WORD_BYTES = 4


def as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Return the rows and columns of a parameter seen as a matrix: the first dimension x all others."""
    return shape[0], math.prod(shape[1:])


def is_worth_factors(shape: Sequence[int], *, rank: int, min_rate: float = 2.0) -> bool:
    """Whether two factors of `rank` take less than 1 / `min_rate` of a parameter's entries (Vogels et al., 2019)."""
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


def coded_bytes(num_entries: int, *, bits: int, num_scales: int = 0) -> int:
    """Return the bytes of float32 scales and packed codes, in whole words: payloads lie one behind the other."""
    return WORD_BYTES * (num_scales + math.ceil(num_entries * bits / (8 * WORD_BYTES)))


def majority_sign_bytes(num_entries: int) -> int:
    return coded_bytes(num_entries, bits=1)


def scaled_sign_bytes(num_entries: int, num_layers: int) -> int:
    return coded_bytes(num_entries, bits=1, num_scales=num_layers)


def onebit_bytes(num_entries: int, num_layers: int) -> int:
    return coded_bytes(num_entries, bits=1, num_scales=2 * num_layers)


def terngrad_bytes(num_entries: int, num_layers: int) -> int:
    return coded_bytes(num_entries, bits=2, num_scales=num_layers)


def qsgd_bytes(num_entries: int, *, levels: int, bucket: int) -> int:
    return coded_bytes(num_entries, bits=code_bits(levels), num_scales=math.ceil(num_entries / bucket))
