"""What the arms train: three workloads of about 5 million parameters, on shards that differ between the hosts."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from races import models
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from trainers.spec.workloads import FashionConv, StdlibLm
from trainers.traffic.shapes import NUM_BYTES
from trainers.workload import Batch, Workload
from trainers.workloads.conv import FashionMnist
from trainers.workloads.stdlib import Stdlib

NUM_VALIDATION_IMAGES = 512
NUM_VALIDATION_WINDOWS = 64


class Shards:
    """A stream that draws each host's batches, with replacement, from its own part of `samples`.

    The parts are equal cuts of `order` `(n,)`, the indices of the samples by what the hosts differ in.
    """

    def __init__(self, samples: TensorDataset, order: Tensor, batch_size: int) -> None:
        self._samples, self._order, self._batch_size = samples, order, batch_size

    def batches(self, *, seed: int, start_step: int, rank: int, num_workers: int) -> Iterator[Batch]:
        part = torch.tensor_split(self._order, num_workers)[rank]
        step = start_step
        while True:
            drawn = np.random.default_rng([seed, step, rank]).integers(len(part), size=self._batch_size)
            yield self._samples[part[torch.from_numpy(drawn)]]
            step += 1


class Clothes(FashionMnist):
    """Fashion-MNIST, by label unless `mixed`: of two hosts, each sees five kinds of clothes only."""

    def __init__(self, net: Callable[[], nn.Module], batch_size: int, *, mixed: bool = False) -> None:
        super().__init__(FashionConv())
        self._net = net
        assert isinstance(self.training, TensorDataset) and isinstance(self.validation, TensorDataset)
        labels = self.training.tensors[1]
        order = shuffled(len(labels)) if mixed else torch.argsort(labels, stable=True)
        self.training = Shards(self.training, order, batch_size)
        self.validation = spread(self.validation, NUM_VALIDATION_IMAGES)

    def model(self) -> nn.Module:
        return self._net()


class NextBytes:
    """A stream that draws each host's windows `(b, context + 1)` from all of `text`, with weights `(b, context)`.

    Hosts differ in the bytes that they learn to predict: the values 0 to 255 are cut so that each host has about an
    equal share of the text. A weight is the number of hosts where the next byte is this host's, else 0, so the mean of
    the hosts' losses is that of all bytes.
    """

    def __init__(self, text: Tensor, batch_size: int) -> None:
        self._text, self._batch_size = text, batch_size

    def batches(self, *, seed: int, start_step: int, rank: int, num_workers: int) -> Iterator[Batch]:
        shares = torch.bincount(self._text.flatten(), minlength=NUM_BYTES).double() / self._text.numel()
        owners = (num_workers * (shares.cumsum(0) - shares / 2)).long()
        weights = num_workers * (owners == rank).float()
        step = start_step
        while True:
            drawn = np.random.default_rng([seed, step, rank]).integers(len(self._text), size=self._batch_size)
            windows = self._text[torch.from_numpy(drawn)]
            yield windows, weights[windows[:, 1:].long()]
            step += 1


class Text(Stdlib):
    """The standard library's source, by next byte unless `mixed`: of two hosts, each learns to predict half of the
    alphabet only."""

    def __init__(self, size: Literal["0.2M", "5M"], batch_size: int, *, mixed: bool = False) -> None:
        super().__init__(StdlibLm(size=size))
        assert isinstance(self.training, TensorDataset) and isinstance(self.validation, TensorDataset)
        text = self.training.tensors[0]
        self.training = (
            Shards(TensorDataset(text), shuffled(len(text)), batch_size) if mixed else NextBytes(text, batch_size)
        )
        self.validation = spread(self.validation, NUM_VALIDATION_WINDOWS)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean of nats per byte, weighted where the batch has weights."""
        text, *weights = batch
        text = text.long()
        losses = nn.functional.cross_entropy(model(text[:, :-1]).transpose(1, 2), text[:, 1:], reduction="none")
        return (losses * weights[0]).mean() if weights else losses.mean()


def shuffled(count: int) -> Tensor:
    """Return 0 to `count` - 1 in an order that is the same for all hosts and seeds."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))


def spread(samples: TensorDataset, count: int) -> TensorDataset:
    """Return `count` of the samples, evenly spaced."""
    chosen = torch.linspace(0, len(samples) - 1, count).long()
    return TensorDataset(*(tensor[chosen] for tensor in samples.tensors))


small_net = functools.partial(models.residual_net, models.SMALL_STAGES)
#: The tasks by name.
BUILDERS: dict[str, Callable[[], Workload]] = {
    "one-large-layer": lambda: Clothes(models.one_large_layer, batch_size=64),
    "residual-net": lambda: Clothes(models.residual_net, batch_size=16),
    "transformer": lambda: Text("5M", batch_size=8),
    "images": lambda: Clothes(small_net, batch_size=16, mixed=True),
    "images-apart": lambda: Clothes(small_net, batch_size=16),
    "text": lambda: Text("0.2M", batch_size=8, mixed=True),
    "text-apart": lambda: Text("0.2M", batch_size=8),
}


@functools.cache
def build(name: str) -> Workload:
    """Return the workload of task `name`, one for all workers: their data is big, and does not change."""
    return BUILDERS[name]()


def reference(name: str) -> dict[str, object]:
    """Return what a job says to train the task `name`."""
    return {"factory": "races.tasks:build", "params": {"name": name}}


@dataclass(frozen=True)
class Goal:
    """The validation loss that ends a race, and how races to it go. Found with plain DDP and the controls only."""

    loss: float
    max_steps: int  # more than twice of what plain DDP needs
    first_rate: float  # the search for rates starts there
    block_steps: int = 10  # steps in a turn, after which there is a validation


GOALS = {
    "one-large-layer": Goal(loss=0.6, max_steps=180, first_rate=0.08),
    "residual-net": Goal(loss=0.65, max_steps=270, first_rate=0.005),
    "transformer": Goal(loss=2.9, max_steps=150, first_rate=0.00125),
}

#: SGD has momentum 0.9, AdamW torch's defaults.
OPTIMIZERS: dict[str, Literal["sgd", "adamw"]] = dict.fromkeys(BUILDERS, "sgd") | {"transformer": "adamw"}
