"""The samples that a rank sees at a step: a pure function, so that nothing about the data needs to be stored."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, num_samples: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng([seed, epoch]).permutation(num_samples))


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Walks through a fresh permutation per epoch; the last, incomplete step of an epoch is dropped.

    Within a step no sample is seen twice, on whichever rank and in whichever micro-batch.
    """

    seed: int
    num_samples: int
    num_workers: int
    batch_size: int  # samples per rank and micro-batch
    accumulate: int = 1  # micro-batches per step

    def __post_init__(self) -> None:
        if self.step_samples > self.num_samples:
            raise ValueError(
                f"`batch_size` {self.batch_size} x `accumulate` {self.accumulate} x {self.num_workers} workers "
                f"must be at most the {self.num_samples} training samples, got {self.step_samples}"
            )

    @property
    def step_samples(self) -> int:
        """Samples that all ranks together see in a step."""
        return self.num_workers * self.accumulate * self.batch_size

    @property
    def epoch_steps(self) -> int:
        """Steps in an epoch."""
        return self.num_samples // self.step_samples

    def indices(self, step: int, *, rank: int, micro: int = 0) -> Tensor:
        """Return the samples `(batch_size,)` (int64) of `rank` at `step`, in micro-batch `micro`."""
        epoch, place = divmod(step, self.epoch_steps)
        start = place * self.step_samples + (rank * self.accumulate + micro) * self.batch_size
        return _permutation(self.seed, epoch, self.num_samples)[start : start + self.batch_size]


@dataclass(frozen=True, kw_only=True)
class PartitionedSampler:
    """Gives each rank samples of its own share alone: a fresh permutation of it per epoch, as `Sampler` does."""

    seed: int
    shares: tuple[NDArray[np.int64], ...]  # by rank
    batch_size: int
    accumulate: int = 1

    def __post_init__(self) -> None:
        smallest, step_samples = min(map(len, self.shares)), self.accumulate * self.batch_size
        if step_samples > smallest:
            raise ValueError(
                f"`batch_size` {self.batch_size} x `accumulate` {self.accumulate} must be at most a worker's share of "
                f"{smallest} of the {sum(map(len, self.shares))} training samples, got {step_samples}"
            )

    def _within(self, num_samples: int) -> Sampler:
        return Sampler(
            seed=self.seed,
            num_samples=num_samples,
            num_workers=1,
            batch_size=self.batch_size,
            accumulate=self.accumulate,
        )

    @property
    def epoch_steps(self) -> int:
        """Steps in an epoch of the rank that has the fewest samples."""
        return min(self._within(len(share)).epoch_steps for share in self.shares)

    def indices(self, step: int, *, rank: int, micro: int = 0) -> Tensor:
        """Return the samples `(batch_size,)` (int64) of `rank` at `step`, in micro-batch `micro`."""
        share = self.shares[rank]
        within = self._within(len(share)).indices(step, rank=0, micro=micro)
        return torch.from_numpy(share[within.numpy()])
