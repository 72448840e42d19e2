"""Sum the ranks' selections of a bucket: the protocol, and `Gather`, by which every rank gathers all payloads."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from trainers.exchange.connection import Connection
from trainers.exchange.kernels.entries import Entries
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.payload import Header, Payload, header
from trainers.snapshot import Stateless
from trainers.spec.sparse import SparseConfig
from trainers.traffic import collectives
from trainers.traffic.buckets import Bucket


@dataclass(frozen=True)
class Report:
    """The result of a bucket's exchange that all ranks know. Counts are numbers of entries."""

    loss: float  # mean over the ranks
    is_finite: bool
    most_wanted: float  # by the rank that wanted most; where the bucket went densely, the mean over the ranks
    sent: float  # mean over the ranks
    note: float = 0.0  # of the ranks' selectors, the mean


class Unread(NamedTuple):
    """A report that may still be on a GPU."""

    words: Tensor  # (n,) int32
    read: Callable[[Tensor], Report]  # of the words in host memory; ends the bucket's step


def read(unread: Sequence[Unread]) -> list[Report]:
    """Return the reports. The host waits for a GPU only here, after the last bucket."""
    host = torch.cat([each.words for each in unread]).cpu()
    ends = accumulate(len(each.words) for each in unread)
    return [each.read(host[end - len(each.words) : end]) for each, end in zip(unread, ends, strict=True)]


class Aggregator(Protocol):
    """Sums what the ranks selected of one bucket."""

    def num_bytes(self, capacity: int) -> int:
        """Return the bytes that a rank sends for payloads of `capacity` entries."""

    def reduce(self, selection: Selection, capacity: int, *, loss: Tensor, memory: Memory, out: Tensor) -> Unread:
        """Overwrite `out` with the ranks' mean of what they sent. Entries that did not fit go back to `memory`."""

    def release(self, values: Tensor) -> None:
        """Add what this rank keeps for others to `values`, which will be averaged densely."""

    def rescale(self, factor: float) -> None:
        """Multiply what is kept for others by `factor` in the coming step."""

    def commit(self) -> None: ...
    def tensors(self) -> dict[str, Tensor]: ...
    def scalars(self) -> dict[str, Any]: ...
    def load_scalars(self, scalars: dict[str, Any]) -> None: ...


class Forgetful(Stateless):
    """The base of aggregators that keep nothing between steps."""

    def release(self, values: Tensor) -> None:
        return

    def rescale(self, factor: float) -> None:
        return

    def commit(self) -> None:
        return


class Gather(Forgetful):
    """Send every payload to every rank: N-1 payloads leave each rank."""

    def __init__(self, config: SparseConfig, bucket: Bucket, connection: Connection) -> None:
        self._bucket, self._connection, self._dtype = bucket, connection, config.values

    def num_bytes(self, capacity: int) -> int:
        return collectives.gather(self._bucket.num_elements, capacity, self._dtype, self._connection.num_workers).bytes

    def reduce(self, selection: Selection, capacity: int, *, loss: Tensor, memory: Memory, out: Tensor) -> Unread:
        payload = Payload(self._bucket.num_elements, capacity, self._dtype)
        indices = selection.entries.indices
        mine, errors = payload.pack(header(selection, loss), selection.entries)
        memory.keep(self._bucket.span, Entries(indices, errors))
        rows = self._connection.all_gather(mine, payload.parts())
        payload.sum(rows, out, scale=1 / len(rows))
        words = [num_used(indices, len(out)), payload.headers(rows).flatten()]
        return Unread(torch.cat(words), partial(self._read, payload))

    def _read(self, payload: Payload, words: Tensor) -> Report:
        self._connection.charge(payload.unused(int(words[0])), collectives.all_gather)
        return report(read_headers(words[1:]), payload.layout.capacity)


def num_used(indices: Tensor, d: int) -> Tensor:
    """Return how many of `indices` `(k,)` are entries of a vector `(d,)`, as a word `(1,)` int32 beside them."""
    return (indices < d).sum(0, True, dtype=torch.int32)


def read_headers(words: Tensor) -> list[Header]:
    """Return the headers in `words` `(5 N,)`, in host memory."""
    return [Header.read(each) for each in words.view(-1, len(Header._fields))]


def report(headers: list[Header], capacity: int) -> Report:
    """Combine the ranks' headers into one report. Payloads had room for `capacity` entries."""
    return Report(
        loss=sum(each.loss for each in headers) / len(headers),
        is_finite=all(each.is_finite and math.isfinite(each.loss) for each in headers),
        most_wanted=max(each.wanted for each in headers),
        sent=sum(min(each.wanted, capacity) for each in headers) / len(headers),
        note=sum(each.note for each in headers) / len(headers),
    )
