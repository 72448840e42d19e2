"""What ranks built is compared by a few numbers, which tell other data from data that were rounded otherwise."""

from typing import Any

import numpy as np
import pytest
import torch

from trainers.training import likeness

FEATURES = torch.randn(1000, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("other", "is_close"),
    [
        (FEATURES.clone(), True),
        (FEATURES * (1 + 1e-6), True),
        (FEATURES.flip(0), False),
        (-FEATURES, False),
        (FEATURES[:-2], False),
        (torch.randn(1000, generator=torch.Generator().manual_seed(2)), False),
    ],
    ids=["the same", "rounded", "in another order", "negated", "shorter", "drawn anew"],
)
def test_a_tensor_is_told_from_another_and_not_from_what_is_rounded(other: torch.Tensor, is_close: bool):
    assert likeness.are_close(likeness.sketch(FEATURES), likeness.sketch(other)) is is_close


@pytest.mark.parametrize("tensor", [torch.zeros(0), torch.zeros(3), torch.tensor([float("nan"), 1.0])])
def test_a_tensor_without_a_direction_is_like_itself(tensor: torch.Tensor):
    assert likeness.are_close(likeness.sketch(tensor), likeness.sketch(tensor))


@pytest.mark.parametrize(
    ("sample", "other"),
    [
        ((torch.ones(3), 1), (torch.ones(3), 2)),
        ({"text": "a"}, {"text": "b"}),
        (np.arange(3), np.arange(1, 4)),
        ([torch.ones(2, dtype=torch.complex64)], [1j * torch.ones(2)]),
    ],
)
def test_samples_of_any_kind_are_told_apart(sample: Any, other: Any):
    mine, theirs = (list(likeness._numbers(each)) for each in (sample, other))

    assert mine and not likeness.are_close(mine, theirs)


def test_what_only_one_rank_has_differs():
    assert likeness.differing({"buffer `a`": [1.0]}, {"buffer `b`": [1.0]}) == ["buffer `a`", "buffer `b`"]
