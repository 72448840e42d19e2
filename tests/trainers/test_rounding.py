"""Averages in float16 of one rank, whose magnitude changes from one step to the next."""

import pytest
import torch
from torch import Tensor

from trainers.exchange.connection import Connection
from trainers.exchange.ledger import Ledger
from trainers.exchange.pacing import Unpaced
from trainers.exchange.rounding import Rounded


def _averaged(rounded: Rounded, value: float) -> Tensor:
    """Return what becomes of a group of one tensor in a step that counts."""
    tensor = torch.full((3,), value)
    assert rounded.average(0, [[tensor]])
    rounded.commit()
    return tensor


@pytest.mark.parametrize("before", [0.0, 1e-38, 1.0, 1e30])
@pytest.mark.parametrize("value", [1e-38, 1e-9, 1.0, 1e30])
def test_a_sum_comes_back_however_much_smaller_or_0_the_one_before_was(before: float, value: float):
    rounded = Rounded(Connection(1, Unpaced(), Ledger()), "float16")
    for _ in range(2):
        _averaged(rounded, before)

    _averaged(rounded, value)  # which may be too small for the scale of the last

    torch.testing.assert_close(_averaged(rounded, value), torch.full((3,), value), rtol=1e-3, atol=0.0)
