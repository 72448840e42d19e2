from dataclasses import replace

import pytest
import torch

from trainers.training.sampler import Sampler

SAMPLER = Sampler(seed=1, num_samples=100, num_workers=3, batch_size=4, accumulate=2)
STEPS_PER_EPOCH = 100 // 24


def step_samples(sampler: Sampler, step: int) -> list[int]:
    return [
        index
        for rank in range(sampler.num_workers)
        for micro in range(sampler.accumulate)
        for index in sampler.indices(step, rank=rank, micro=micro).tolist()
    ]


@pytest.mark.parametrize("step", [0, 3, 4, 1000])
def test_no_sample_is_seen_twice_within_a_step(step: int):
    assert len(set(step_samples(SAMPLER, step))) == 24


@pytest.mark.parametrize("epoch", [0, 7])
def test_no_sample_is_seen_twice_within_an_epoch(epoch: int):
    first = epoch * STEPS_PER_EPOCH

    seen = [index for step in range(first, first + STEPS_PER_EPOCH) for index in step_samples(SAMPLER, step)]

    assert len(set(seen)) == len(seen) == STEPS_PER_EPOCH * 24


def test_a_batch_depends_on_its_coordinates_only():
    batch = SAMPLER.indices(9, rank=1, micro=1)
    SAMPLER.indices(500, rank=0)

    assert torch.equal(replace(SAMPLER).indices(9, rank=1, micro=1), batch)


@pytest.mark.parametrize("change", [{"seed": 2}, {"step": 9 + STEPS_PER_EPOCH}])
def test_another_seed_or_epoch_shuffles_anew(change: dict[str, int]):
    other = replace(SAMPLER, seed=change.get("seed", SAMPLER.seed))

    assert step_samples(other, change.get("step", 9)) != step_samples(SAMPLER, 9)


def test_a_step_larger_than_the_data_is_refused():
    with pytest.raises(ValueError, match=r"`batch_size` 40 x `accumulate` 1 x 3 workers.*got 120"):
        Sampler(seed=0, num_samples=100, num_workers=3, batch_size=40)
