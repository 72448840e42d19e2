"""Brings a rank its batches: a pure function of (seed, step, rank), however often training is rewound."""

import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

from trainers import random_state
from trainers.spec.partition import IidPartition
from trainers.spec.replica import ReplicaConfig
from trainers.training import partition
from trainers.training.sampler import PartitionedSampler, Sampler as StatelessSampler
from trainers.workload import Batch, Samples, Stream, Workload, WorkloadError


class Place(NamedTuple):
    """The place of a micro-batch: its optimizer step, the rank whose samples it has, and its number in that step."""

    step: int
    rank: int
    micro: int


class Feed(Protocol):
    """The training batches of all ranks, for one of them to ask for. An epoch has `epoch_steps`; None: no end."""

    epoch_steps: int | None  # with the workload's own batch size

    def batch(self, place: Place, batch_size: int | None) -> Batch:
        """Return the micro-batch at `place`; `batch_size` None: the workload's own."""


def build(workload: Workload, config: ReplicaConfig, num_workers: int) -> Feed:
    """Return the feed that suits the workload's training data; raises WorkloadError if none does."""
    data: Any = workload.training
    if hasattr(data, "batches"):
        if config.workload.batch_size is not None:
            raise WorkloadError(
                "`workload.batch_size` is of no use here: `training` is a stream, which makes its batches itself"
            )
        if not isinstance(config.partition, IidPartition):
            raise WorkloadError(
                f"`partition` {config.partition.kind} divides samples by index: `training` is a stream, which has none"
            )
        return StreamFeed(data, config, num_workers)
    if isinstance(data, IterableDataset) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise WorkloadError(
            f"`training` is a {type(data).__name__}, which has no samples by index: give a map-style data set, or an "
            "object with a method `batches(seed, start_step, rank, num_workers)`"
        )
    try:
        sampler = _sampler(workload, len(data), config, num_workers)
    except ValueError as error:
        raise WorkloadError(str(error)) from error
    requests = _Requests(sampler)
    if workload.loader_processes:
        return LoaderFeed(workload, requests, timeout_s=config.collective_timeout_s)
    return IndexFeed(workload, requests)


def _sampler(
    workload: Workload, num_samples: int, config: ReplicaConfig, num_workers: int
) -> StatelessSampler | PartitionedSampler:
    """Return who sees which samples when; raises ValueError where a step takes more than there are."""
    batch_size, accumulate = workload.batch_size, config.accumulate
    everything = StatelessSampler(
        seed=config.seed,
        num_samples=num_samples,
        num_workers=num_workers,
        batch_size=batch_size,
        accumulate=accumulate,
    )
    if isinstance(config.partition, IidPartition):
        return everything
    labels = _labels(workload, num_samples, config.partition.kind)
    shares = partition.shares(config.partition, labels, num_workers=num_workers, seed=config.seed)
    return PartitionedSampler(seed=config.seed, shares=tuple(shares), batch_size=batch_size, accumulate=accumulate)


def _labels(workload: Workload, num_samples: int, kind: str) -> np.ndarray:
    """Return the class of each sample `(num_samples,)`; raises WorkloadError unless the workload knows them."""
    given = workload.labels()
    if given is None:
        raise WorkloadError(
            f"`partition` {kind} needs labels, and the workload has none: give its class a method `labels`, or "
            "`partition: {kind: iid}`"
        )
    labels = np.asarray(given)
    if labels.shape != (num_samples,) or labels.dtype.kind not in "iu":
        raise WorkloadError(
            f"`labels` must return {num_samples} whole numbers, one for each training sample; got {labels.dtype} of "
            f"shape {labels.shape}"
        )
    return labels


class _Request(NamedTuple):
    """The samples of a batch, and the seed of whatever is drawn at random while they are fetched."""

    indices: Tensor
    seed: int


class _Requests(Sampler[_Request]):
    """A rank's requests, in order from `start` on, without end."""

    def __init__(self, sampler: StatelessSampler | PartitionedSampler) -> None:
        self._sampler = sampler
        self._default_size, self.epoch_steps = sampler.batch_size, sampler.epoch_steps
        self.start = Place(0, 0, 0)

    def resize(self, batch_size: int | None) -> None:
        """Make batches of `batch_size` samples from now on; None: of the workload's own.

        Raises WorkloadError where a step takes more than there are.
        """
        try:
            self._sampler = replace(self._sampler, batch_size=batch_size or self._default_size)
        except ValueError as error:
            raise WorkloadError(str(error)) from error

    def at(self, place: Place) -> _Request:
        indices = self._sampler.indices(place.step, rank=place.rank, micro=place.micro)
        return _Request(indices, seed_of((self._sampler.seed, *place)))

    def after(self, place: Place) -> Place:
        """Return the same rank's place that follows."""
        return _after(place, self._sampler.accumulate)

    def __iter__(self) -> Iterator[_Request]:
        place = self.start
        while True:
            yield self.at(place)
            place = self.after(place)


def _after(place: Place, accumulate: int) -> Place:
    is_last = place.micro + 1 == accumulate
    return place._replace(step=place.step + 1, micro=0) if is_last else place._replace(micro=place.micro + 1)


class _Fetcher(Dataset[Batch]):
    """The training samples as a data set of whole batches."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    def __getitem__(self, request: _Request) -> Batch:
        data: Any = self._workload.training
        if _is_indexed_at_once(self._workload, data):  # draws nothing at random
            return data[request.indices]
        with random_state.seeded(request.seed):
            return fetch(self._workload, data, request.indices)


def fetch(workload: Workload, data: Samples, indices: Tensor) -> Batch:
    """Return the samples of `data` at `indices` `(b,)` as one batch."""
    if _is_indexed_at_once(workload, data):
        return data[indices]
    wanted = indices.tolist()
    together = getattr(data, "__getitems__", None)  # torch's convention for fetching many at once
    return workload.collate(together(wanted) if together else [data[index] for index in wanted])


def _is_indexed_at_once(workload: Workload, data: Samples) -> bool:
    """Return whether indexing the tensors makes the batch: a hundred times faster than sample by sample."""
    return type(data) is TensorDataset and type(workload).collate is Workload.collate


class IndexFeed:
    """Fetches each batch when it is asked for."""

    def __init__(self, workload: Workload, requests: _Requests) -> None:
        self._fetcher, self._requests = _Fetcher(workload), requests
        self.epoch_steps: int | None = requests.epoch_steps

    def batch(self, place: Place, batch_size: int | None) -> Batch:
        self._requests.resize(batch_size)
        return self._fetcher[self._requests.at(place)]


class LoaderFeed:
    """Fetches batches ahead in processes of a `DataLoader`, and starts anew where training is rewound to."""

    def __init__(self, workload: Workload, requests: _Requests, *, timeout_s: float) -> None:
        self._requests = requests
        self.epoch_steps: int | None = requests.epoch_steps
        self._loader: DataLoader[Batch] = DataLoader(
            _Fetcher(workload),
            batch_size=None,
            sampler=requests,
            num_workers=workload.loader_processes,
            persistent_workers=True,
            timeout=timeout_s,
        )
        self._batches: Iterator[Batch] | None = None
        self._place: Place | None = None
        self._batch_size: int | None = None

    def batch(self, place: Place, batch_size: int | None) -> Batch:
        if self._batches is None or (self._place, self._batch_size) != (place, batch_size):
            self._batch_size = batch_size
            self._requests.resize(batch_size)
            self._requests.start = place
            with random_state.seeded(0):  # the loader draws a seed for its processes, which draw nothing from it
                self._batches = iter(self._loader)
        self._place = self._requests.after(place)
        return next(self._batches)


class StreamFeed:
    """Reads a stream on, and opens it again where training is rewound to."""

    epoch_steps: int | None = None

    def __init__(self, stream: Stream, config: ReplicaConfig, num_workers: int) -> None:
        self._stream, self._config, self._num_workers = stream, config, num_workers
        self._batches: Iterator[Batch] = iter(())
        self._place: Place | None = None

    def batch(self, place: Place, batch_size: int | None) -> Batch:
        if self._place != place:
            self._batches = iter(
                self._stream.batches(
                    seed=self._config.seed, start_step=place.step, rank=place.rank, num_workers=self._num_workers
                )
            )
            for _ in range(place.micro):
                self._next(place.step)
        self._place = _after(place, self._config.accumulate)
        return self._next(place.step)

    def _next(self, step: int) -> Batch:
        for batch in self._batches:
            return batch
        raise WorkloadError(f"`training.batches` ended before step {step}; it must go on without end")


def seed_of(place: tuple[int, ...]) -> int:
    """Return a seed for what is drawn at `place`, such as (seed, step, rank, micro-batch)."""
    return zlib.crc32(repr(place).encode())


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return `batch` with its tensors on `device`."""
    match batch:
        case Tensor():
            # From pinned memory: the host does not wait until such a copy has its turn.
            waits = device.type == "cuda" and batch.device.type == "cpu"
            return (batch.pin_memory() if waits else batch).to(device, non_blocking=True)
        case dict():
            return {key: to_device(value, device) for key, value in batch.items()}
        case tuple() if hasattr(batch, "_fields"):  # a named tuple
            return type(batch)(*(to_device(value, device) for value in batch))
        case tuple() | list():
            return type(batch)(to_device(value, device) for value in batch)
        case _:
            return batch.to(device) if hasattr(batch, "to") else batch
