"""How the ranks' selections of a bucket are added up; here: every rank gathers those of all."""

import math
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from trainers import cost
from trainers.exchange.buckets import Bucket
from trainers.exchange.config import SparseConfig
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.payload import Header, Payload
from trainers.exchange.wire import Wire
from trainers.snapshot import Stateless


@dataclass(frozen=True)
class Report:
    """What all ranks know of a bucket's exchange. Numbers of entries."""

    loss: float  # mean over the ranks
    is_finite: bool
    most_wanted: float  # by the rank that wanted most
    sent: float  # mean over the ranks
    note: float = 0.0  # of the ranks' selectors, the mean


class Aggregator(Protocol):
    """Sums what the ranks selected of one bucket."""

    def num_bytes(self, capacity: int) -> int:
        """Return the bytes that a rank sends for payloads of `capacity` entries."""

    def reduce(self, selection: Selection, capacity: int, *, loss: float, memory: Memory, out: Tensor) -> Report:
        """Overwrite `out` by the mean over the ranks of what they sent; what did not fit goes back to `memory`."""

    def release(self, values: Tensor) -> None:
        """Add to `values`, which will be averaged densely, what this rank keeps for others."""

    def rescale(self, factor: float) -> None:
        """Use what is kept for others times `factor` in the coming step."""

    def commit(self) -> None: ...
    def tensors(self) -> dict[str, Tensor]: ...
    def scalars(self) -> dict[str, Any]: ...
    def load_scalars(self, scalars: dict[str, Any]) -> None: ...


class Forgetful(Stateless):
    """What aggregators have in common that keep nothing between steps."""

    def release(self, values: Tensor) -> None:
        return

    def rescale(self, factor: float) -> None:
        return

    def commit(self) -> None:
        return


class Gather(Forgetful):
    """Every rank gets every payload: (N-1) payloads leave each rank."""

    def __init__(self, config: SparseConfig, bucket: Bucket, wire: Wire) -> None:
        self._bucket, self._wire, self._dtype = bucket, wire, config.values

    def num_bytes(self, capacity: int) -> int:
        return cost.gather(self._bucket.num_elements, capacity, self._dtype, self._wire.num_workers).bytes

    def reduce(self, selection: Selection, capacity: int, *, loss: float, memory: Memory, out: Tensor) -> Report:
        payload = self._payload(capacity)
        words, errors = payload.pack(Header.of(selection, loss), selection.entries)
        memory.keep(self._bucket.span, selection.indices, errors)
        rows = self._wire.all_gather(words, payload.parts(len(selection.indices)))
        headers = payload.headers(rows)
        payload.sum(rows, out, scale=1 / len(rows))
        return report(headers, sent=sum(min(each.wanted, capacity) for each in headers) / len(headers))

    def _payload(self, capacity: int) -> Payload:
        return Payload(self._bucket.num_elements, capacity, self._dtype)


def report(headers: list[Header], *, sent: float) -> Report:
    """Return what the ranks' headers say together."""
    return Report(
        loss=sum(each.loss for each in headers) / len(headers),
        is_finite=all(each.is_finite and math.isfinite(each.loss) for each in headers),
        most_wanted=max(each.wanted for each in headers),
        sent=sent,
        note=sum(each.note for each in headers) / len(headers),
    )
