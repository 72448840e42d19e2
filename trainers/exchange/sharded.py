"""Sums by owners: each rank adds up one shard of a bucket for all, and sends the largest sums around.

A gather costs a rank N-1 payloads; here it is 2(N-1)/N of one, whatever N. The sum of all selections has more entries
than one of them: what an owner does not send around it keeps, and adds to its later sums, so that nothing is lost.
"""

from typing import Any

import torch
from torch import Tensor

from trainers import cost
from trainers.exchange.aggregate import Report, report
from trainers.exchange.buckets import Bucket
from trainers.exchange.compressors.topk import largest
from trainers.exchange.config import SparseConfig
from trainers.exchange.kernels.entries import Entries
from trainers.exchange.kernels.scatter import scatter_add
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.payload import Header, Payload
from trainers.exchange.shards import Shards
from trainers.exchange.wire import Wire
from trainers.snapshot import Kept


class Sharded:
    """Two collectives: payloads to the owners, and the owners' means to all."""

    def __init__(self, config: SparseConfig, bucket: Bucket, wire: Wire, device: torch.device) -> None:
        self._bucket, self._wire, self._dtype = bucket, wire, config.values
        self._shards = Shards(bucket.num_elements, wire.num_workers)
        self._room = 0  # entries of a payload for one owner; 0: not yet known
        self._next_room = 0
        self._factor = 1.0
        # Of this rank's shard: means that were not sent around.
        self._kept, self._next_kept = (torch.zeros(self._shards.size, device=device) for _ in range(2))

    def num_bytes(self, capacity: int) -> int:
        room, kept = self._to_owner(capacity).layout.capacity, self._to_all(capacity).layout.capacity
        return cost.sharded(self._shards.size, room, kept, self._dtype, self._wire.num_workers).bytes

    def reduce(self, selection: Selection, capacity: int, *, loss: float, memory: Memory, out: Tensor) -> Report:
        rows, headers = self._to_owners(selection, capacity, loss, memory)
        self._sum(rows, capacity)
        self._to_everybody(capacity, out)
        self._next_room = cost.capacity_for(max(each.most for each in headers), self._shards.size)
        return report(headers, sent=sum(min(each.wanted, capacity) for each in headers) / len(headers))

    def _to_owners(
        self, selection: Selection, capacity: int, loss: float, memory: Memory
    ) -> tuple[Tensor, list[Header]]:
        """Send each owner its entries; returns what this one got, and what all ranks say."""
        payload, pieces = self._to_owner(capacity), self._shards.split(selection.indices)
        header = Header.of(selection, loss, most=max(len(piece.places) for piece in pieces))
        rows, count = [], 0
        for piece in pieces:
            values = selection.values[piece.places]
            entries = Entries(piece.indices, values).first(payload.layout.capacity)
            words, errors = payload.pack(header, entries)
            values[: len(errors)] = errors  # beyond the room, an entry's error is all of it
            memory.keep(self._bucket.span, selection.indices[piece.places], values)
            rows.append(words)
            count += len(entries.indices)
        received = self._wire.all_to_all(torch.stack(rows), payload.parts(count, copies=len(rows)))
        return received, payload.headers(received)

    def _sum(self, rows: Tensor, capacity: int) -> None:
        """Add the mean of the ranks' entries in this rank's shard to what it had kept."""
        payload = self._to_owner(capacity)
        mean = torch.mul(self._kept, self._factor, out=self._next_kept)
        for row in rows:
            payload.add_to(mean, row, scale=1 / len(rows))

    def _to_everybody(self, capacity: int, out: Tensor) -> None:
        """Send the largest means around, keep the others, and overwrite `out` by what all owners sent."""
        payload, mean = self._to_all(capacity), self._next_kept
        chosen = largest(mean, payload.layout.capacity)
        header = Header(wanted=len(chosen), loss=0.0, is_finite=True, most=0)
        words, mean[chosen] = payload.pack(header, Entries(chosen, mean[chosen]))
        rows = self._wire.all_gather(words, payload.parts(len(chosen)))
        out.zero_()
        for owner, row in enumerate(rows):
            indices, values = payload.entries(row)
            scatter_add(out, Entries(self._shards.join(indices, owner), values))

    def _to_owner(self, capacity: int) -> Payload:
        room = self._room or cost.capacity_for(capacity / self._wire.num_workers, self._shards.size)
        return Payload(self._shards.size, room, self._dtype)

    def _to_all(self, capacity: int) -> Payload:
        return Payload(self._shards.size, min(self._shards.size, -(-capacity // self._wire.num_workers)), self._dtype)

    def release(self, values: Tensor) -> None:
        self._shards.add(values, self._wire.rank, self._kept * (self._factor * self._wire.num_workers))
        self._next_kept.zero_()
        self._next_room = self._room

    def rescale(self, factor: float) -> None:
        self._factor = factor

    def commit(self) -> None:
        self._kept, self._next_kept = self._next_kept, self._kept
        self._room = self._next_room

    def tensors(self) -> dict[str, Tensor]:
        return {"kept": self._kept}

    def scalars(self) -> dict[str, Any]:
        return {"room": self._room}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._room = scalars["room"]


def owned(kept: Kept, bucket: Bucket) -> Tensor:
    """Return the means `(bucket.num_elements,)` that an old rank held as an owner; zeros if there were no owners."""
    means = torch.zeros(bucket.num_elements)
    shard = kept.tensors.get(f"aggregate.{bucket.index}.kept")
    if shard is not None:
        Shards(bucket.num_elements, kept.of).add(means, kept.index, shard)
    return means
