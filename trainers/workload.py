"""What is trained: a model, its data and its loss. The built-in ones are in `trainers.workloads`."""

from typing import Protocol

import torch
from torch import Tensor, nn


class Data(Protocol):
    """A data set by index."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs `(b, ...)` and targets `(b, ...)` of the samples at `indices` `(b,)` (int64)."""


class TensorData:
    """A data set held in memory: inputs `(n, ...)` and targets `(n, ...)`."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.inputs[indices], self.targets[indices]


class Workload(Protocol):
    """A model, a training and a validation set, a loss. Every rank builds its own, and all must be equal."""

    batch_size: int  # samples per worker and micro-batch

    @property
    def training(self) -> Data: ...
    @property
    def validation(self) -> Data: ...

    def model(self) -> nn.Module:
        """Return a fresh model, initialised from torch's global generator, which the caller has seeded."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a batch, a scalar: the mean over its samples."""

    def num_correct(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """Return how many samples are predicted right, a scalar; None where that has no meaning."""


def seeded_model(workload: Workload, seed: int) -> nn.Module:
    """Return the model of `seed`, the same on every rank; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return workload.model()
