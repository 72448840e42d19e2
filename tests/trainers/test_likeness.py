"""What ranks built is compared by a few numbers, which tell other data from data that were rounded otherwise."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset

from tests.trainers.own_models import HeldOut, Regression
from trainers.training import likeness, model
from trainers.training.call_results import Built
from trainers.training.likeness import Likeness
from trainers.workload import WorkloadError

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


def test_workers_must_have_the_same_test_set_but_a_run_may_resume_with_another():
    net, without, with_test = nn.Linear(3, 1), Regression(), HeldOut()
    mine, theirs = (likeness.of(net, each, torch.device("cpu")) for each in (without, with_test))

    assert likeness.differing(mine, theirs)
    assert model.fingerprint(net, without) == model.fingerprint(net, with_test)


class Made(Dataset[torch.Tensor]):
    """100 samples, each made anew when it is fetched."""

    def __init__(self, make: Callable[[int], torch.Tensor]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.make(index)


def built(data: Any, *, loader_processes: int = 0) -> Likeness:
    """Return what a rank finds that trains and validates on `data`."""
    workload = Regression()
    workload.training = workload.validation = data
    workload.loader_processes = loader_processes
    return likeness.of(nn.Identity(), workload, torch.device("cpu"))


def require_alike(ranks: Sequence[Likeness]) -> None:
    likeness.require_alike("the workers", [Built(likeness=each) for each in ranks])


def flipped_now_and_then(seed: int, chance: float) -> Made:
    draw = np.random.default_rng(seed)
    return Made(lambda index: -FEATURES[index:] if draw.random() < chance else FEATURES[index:])


@pytest.mark.parametrize("chance", [0.01, 0.1, 0.5])
def test_ranks_that_augment_now_and_then_from_generators_of_their_own_are_alike(
    chance: float, caplog: pytest.LogCaptureFixture
):
    ranks = [built(flipped_now_and_then(seed, chance)) for seed in range(20)]

    for rank in ranks:
        require_alike([ranks[0], rank])

    assert not caplog.records


@pytest.mark.parametrize("sample", [np.arange(3, dtype=">f4"), np.arange(3, dtype=np.longdouble)], ids=str)
def test_samples_that_torch_cannot_read_until_they_are_collated_are_not_compared(sample: Any):
    assert built(Made(lambda index: sample))["samples of `training`"] == []


def test_samples_that_one_rank_alone_finds_random_are_not_compared(caplog: pytest.LogCaptureFixture):
    ranks = [built(Made(lambda index: FEATURES[index:])), built(flipped_now_and_then(0, chance=0.5))]

    require_alike(ranks)

    assert not caplog.records


def test_samples_that_differ_are_told_and_not_refused(caplog: pytest.LogCaptureFixture):
    ranks = [built(Made(lambda index, scale=scale: scale * FEATURES[index:])) for scale in (1, 2)]

    require_alike(ranks)

    assert "read different data (samples of `training`, samples of `validation` differ)" in caplog.text


@pytest.mark.parametrize("loader_processes", [0, 1])
def test_another_split_is_refused_also_where_loader_processes_read_the_samples(loader_processes: int):
    data = Made(lambda index: FEATURES[index:])
    ranks = [
        built(Subset(Subset(data, whole), range(10)), loader_processes=loader_processes)
        for whole in (list(range(50)), torch.arange(50).flip(0))
    ]

    with pytest.raises(WorkloadError, match="the split of `training`, the split of `validation` differ"):
        require_alike(ranks)
    require_alike([ranks[0], ranks[0]])


def test_what_loader_processes_read_is_not_opened_before_they_start():
    opened: list[int] = []
    data = Made(lambda index: torch.tensor(opened.append(index) or 1.0))

    built(data, loader_processes=1)
    assert opened == []
    built(data)
    assert opened
