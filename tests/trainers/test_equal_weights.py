"""Weights that all ranks must hold alike are compared by the sums of two numbers."""

import torch
from hypothesis import given, strategies as st

from trainers.training.equal_weights import differ, moments

#: The sums of a rank's weights: often those of other ranks.
SUMS = st.lists(st.integers(-2, 2), min_size=2, max_size=2)


@given(st.lists(SUMS, min_size=1, max_size=12))
def test_ranks_differ_unless_all_have_the_same_sums(by_rank: list[list[int]]):
    total = torch.stack([moments(torch.tensor(sums)) for sums in by_rank]).sum(0)

    assert differ(total, len(by_rank)) == any(sums != by_rank[0] for sums in by_rank)


def test_the_squares_of_many_ranks_add_up_exactly():
    one, other = (moments(torch.tensor([number])) for number in (3, 4))

    assert not differ(8_000 * one, 8_000)
    assert differ(7_999 * one + other, 8_000)
