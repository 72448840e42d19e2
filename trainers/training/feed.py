"""Feed a rank its batches: a pure function of (seed, step, rank), however often training is rewound."""

import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

from trainers import random_state
from trainers.methods.replica_config import ReplicaConfig
from trainers.spec.partition import IidPartition
from trainers.training import partition
from trainers.training.sampler import PartitionedSampler, Sampler as StatelessSampler
from trainers.workload import Batch, Samples, Stream, Workload, WorkloadError

#: Keeps what is drawn for a batch apart from what its loss draws, at the same place.
_DRAWS = 11
#: Steps that a stream is read on, where the ones between are left out, before it is opened again.
_READ_ON = 20


class Place(NamedTuple):
    """The place of a micro-batch: its optimizer step, the rank whose samples it has, and its number in that step."""

    step: int
    rank: int
    micro: int


class Feed(Protocol):
    """Serves training batches to a rank: its own, or those of another rank.

    An epoch has `epoch_steps` steps; None: the data do not end.
    """

    epoch_steps: int | None  # with the workload's own batch size

    def batch(self, place: Place, batch_size: int | None) -> Batch:
        """Return the micro-batch at `place`; `batch_size` None: the workload's own."""

    def leave_out(self, is_left_out: Callable[[int], bool]) -> None:
        """Do not prefetch batches of steps that `is_left_out`: the rank will not ask for them."""


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
    """Return the sampler of all ranks. Raises ValueError if a step takes more samples than there are."""
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
        self.made: deque[Place] = deque()  # places of the requests since `start` that the owner has not taken off
        self.is_left_out: Callable[[int], bool] = lambda step: False

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
        return _Request(indices, seed_of((self._sampler.seed, *place, _DRAWS)))

    def after(self, place: Place) -> Place:
        """Return the same rank's place that follows, in a step that is not left out."""
        place = _after(place, self._sampler.accumulate)
        while self.is_left_out(place.step):
            place = place._replace(step=place.step + 1)
        return place

    def __iter__(self) -> Iterator[_Request]:
        place = self.start
        while True:
            self.made.append(place)
            yield self.at(place)
            place = self.after(place)


def _after(place: Place, accumulate: int) -> Place:
    is_last = place.micro + 1 == accumulate
    return place._replace(step=place.step + 1, micro=0) if is_last else place._replace(micro=place.micro + 1)


class _Fetcher(Dataset[Batch]):
    """The samples of `data` as a data set of whole batches."""

    def __init__(self, workload: Workload, data: Any) -> None:
        self._workload, self._data = workload, data

    def __getitem__(self, request: _Request) -> Batch:
        if _is_indexed_at_once(self._workload, self._data):  # draws nothing at random
            return self._data[request.indices]
        with random_state.seeded(request.seed):
            return _fetched(self._workload, self._data, request.indices)


def _fetched(workload: Workload, data: Samples, indices: Tensor) -> Batch:
    wanted = indices.tolist()
    together = getattr(data, "__getitems__", None)  # torch's convention for fetching many at once
    return workload.collate(together(wanted) if together else [data[index] for index in wanted])


def _is_indexed_at_once(workload: Workload, data: Samples) -> bool:
    """Return whether indexing the tensors makes the batch: a hundred times faster than sample by sample."""
    return type(data) is TensorDataset and type(workload).collate is Workload.collate


class IndexFeed:
    """Fetches each batch when it is asked for."""

    def __init__(self, workload: Workload, requests: _Requests) -> None:
        self._fetcher, self._requests = _Fetcher(workload, workload.training), requests
        self.epoch_steps: int | None = requests.epoch_steps

    def batch(self, place: Place, batch_size: int | None) -> Batch:
        self._requests.resize(batch_size)
        return self._fetcher[self._requests.at(place)]

    def leave_out(self, is_left_out: Callable[[int], bool]) -> None:
        return


class LoaderFeed:
    """Prefetches batches in the processes of a `DataLoader`, and restarts it when training is rewound."""

    def __init__(self, workload: Workload, requests: _Requests, *, timeout_s: float) -> None:
        self._requests = requests
        self.epoch_steps: int | None = requests.epoch_steps
        self._loader: DataLoader[Batch] = DataLoader(
            _Fetcher(workload, workload.training),
            batch_size=None,
            sampler=requests,
            num_workers=workload.loader_processes,
            persistent_workers=True,
            timeout=timeout_s,
        )
        self._batches: Iterator[Batch] = iter(())
        self._batch_size: int | None = None

    def batch(self, place: Place, batch_size: int | None) -> Batch:
        made = self._requests.made
        if place in made and self._batch_size == batch_size:
            while made[0] != place:  # a step that is left out after all
                made.popleft()
                next(self._batches)
        else:
            self._batch_size = batch_size
            self._requests.resize(batch_size)
            self._requests.start = place
            made.clear()
            with random_state.seeded(0):  # the loader draws a seed for its processes, which draw nothing from it
                self._batches = iter(self._loader)
        made.popleft()
        return next(self._batches)

    def leave_out(self, is_left_out: Callable[[int], bool]) -> None:
        self._requests.is_left_out = is_left_out


class EvaluationFeed:
    """Serves batches of the `samples` of an evaluation: fetched when asked for, or by processes of a `DataLoader`."""

    def __init__(self, workload: Workload, samples: Samples, *, timeout_s: float) -> None:
        self._fetcher, self._requests = _Fetcher(workload, samples), list[_Request]()
        self._loader: DataLoader[Batch] | None = None
        if workload.loader_processes:
            self._loader = DataLoader(
                self._fetcher,
                batch_size=None,
                sampler=self._requests,
                num_workers=workload.loader_processes,
                persistent_workers=True,
                timeout=timeout_s,
            )

    def batches(self, parts: Sequence[Tensor]) -> Iterator[Batch]:
        """Return the batches of the samples at each of `parts` `(b,)`, which draw the same in every evaluation."""
        self._requests[:] = [_Request(part, seed_of((int(part[0]), _DRAWS))) for part in parts]
        if self._loader is None or not parts:
            return map(self._fetcher.__getitem__, self._requests)
        with random_state.seeded(0):  # as for training
            return iter(self._loader)


class StreamFeed:
    """Reads a stream in order, and reopens it when training is rewound."""

    epoch_steps: int | None = None

    def __init__(self, stream: Stream, config: ReplicaConfig, num_workers: int) -> None:
        self._stream, self._config, self._num_workers = stream, config, num_workers
        self._batches: Iterator[Batch] = iter(())
        self._place: Place | None = None

    def batch(self, place: Place, batch_size: int | None) -> Batch:
        if not self._is_near(place):
            self._place = place._replace(micro=0)
            self._open(self._place)
        while self._place != place:
            self._read()
        return self._read()

    def leave_out(self, is_left_out: Callable[[int], bool]) -> None:
        return

    def _is_near(self, place: Place) -> bool:
        at = self._place
        return at is not None and at.rank == place.rank and at <= place and place.step - at.step <= _READ_ON

    def _open(self, place: Place) -> None:
        seed = self._config.seed
        with self._seeded(place):
            opened = self._stream.batches(
                seed=seed, start_step=place.step, rank=place.rank, num_workers=self._num_workers
            )
            self._batches = iter(opened)

    def _read(self) -> Batch:
        """Return the next batch, that at `self._place`."""
        place = self._place
        assert place is not None
        self._place = _after(place, self._config.accumulate)
        with self._seeded(place):
            for batch in self._batches:
                return batch
        raise WorkloadError(f"`training.batches` ended before step {place.step}; it must go on without end")

    def _seeded(self, place: Place) -> AbstractContextManager[None]:
        """Seed what the stream draws for `place`, so that it draws the same whether it is opened there or read on."""
        return random_state.seeded(seed_of((self._config.seed, *place, _DRAWS)))


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
        case PackedSequence():  # a named tuple that keeps its sizes on the host
            return batch.to(device)  # type: ignore[arg-type]  # its annotation knows types alone
        case tuple() if hasattr(batch, "_fields"):  # a named tuple
            return type(batch)(*(to_device(value, device) for value in batch))
        case tuple() | list():
            return type(batch)(to_device(value, device) for value in batch)
        case _:
            return batch.to(device) if hasattr(batch, "to") else batch
