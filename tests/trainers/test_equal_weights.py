"""Weights that all ranks must hold alike are compared by the sums of two numbers, and where these differ, by norms."""

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from trainers.training.equal_weights import are_close, differ, moments, norm_and_component

WEIGHTS = torch.randn(1000, generator=torch.Generator().manual_seed(1))

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


def test_a_difference_that_one_rank_knows_of_is_not_found_again():
    ranks = [moments(torch.tensor([number]), is_known=number == 3) for number in (3, 4)]

    assert not differ(torch.stack(ranks).sum(0), 2)


@pytest.mark.parametrize(
    ("other", "is_close"),
    [
        (WEIGHTS * (1 + 1e-6), True),
        (WEIGHTS * 1.01, False),
        (-WEIGHTS, False),
        (WEIGHTS.flip(0), False),
        (torch.full((1000,), torch.nan), False),
        (torch.full((1000,), torch.inf), False),
    ],
    ids=["rounded", "longer", "negated", "in another order", "NaN", "infinite"],
)
def test_weights_are_told_from_others_and_not_from_what_is_rounded(other: Tensor, is_close: bool):
    mine, theirs = (torch.tensor([norm_and_component(each)]) for each in (WEIGHTS, other))

    assert are_close(mine, theirs).tolist() == are_close(theirs, mine).tolist() == [is_close]


@pytest.mark.parametrize("size", [0.0, 1e-8, torch.nan])
def test_weights_near_zero_are_close_whatever_their_direction(size: float):
    mine, theirs = (torch.tensor([norm_and_component(size * each)]) for each in (WEIGHTS, WEIGHTS.flip(0)))

    assert are_close(mine, theirs).tolist() == [True]
