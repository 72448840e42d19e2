"""How many bytes each compressor's payload takes, from the shapes alone. Pure Python: costs are predicted with it."""

import math
from collections.abc import Sequence


def as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Return the rows and columns of a parameter seen as a matrix: the first dimension x all others."""
    return shape[0], math.prod(shape[1:])


def is_worth_factors(shape: Sequence[int], *, rank: int, min_rate: float = 2.0) -> bool:
    """Whether two factors of `rank` take less than 1 / `min_rate` of a parameter's entries (Vogels et al., 2019)."""
    if len(shape) < 2:
        return False
    num_rows, num_columns = as_matrix(shape)
    return num_rows * num_columns > min_rate * (num_rows + num_columns) * rank
