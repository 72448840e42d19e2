"""Sum by owner: each rank sums one shard of a bucket for all, and sends its largest sums to all.

A gather costs each rank N-1 payloads; this costs 2(N-1)/N of one, whatever N is. The sum of all selections has more
entries than a single selection. An owner keeps the sums that it does not send and adds them to later ones, so nothing
is lost.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trainers.exchange.aggregate import Report, Unread, num_used, read_headers, report
from trainers.exchange.connection import Connection
from trainers.exchange.kernels.entries import Entries
from trainers.exchange.kernels.largest import largest
from trainers.exchange.kernels.scatter import clear, places, scatter_add, take
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.payload import Header, Payload, header
from trainers.snapshot import Kept
from trainers.spec.sparse import SparseConfig
from trainers.traffic import collectives
from trainers.traffic.buckets import Bucket

BLOCK = collectives.SHARD_BLOCK
#: Shifts and masks take a tenth of the time of integer division and remainder.
BLOCK_BITS = BLOCK.bit_length() - 1
assert BLOCK == 1 << BLOCK_BITS


class Piece(NamedTuple):
    """The entries of a selection that belong to one owner, as many as there is room for."""

    places: Tensor  # (k,) int32, in the selection; unused slots point past its end
    indices: Tensor  # (k,) int32, in the owner's shard
    wanted: Tensor  # int32 scalar: how many there are, whether or not there is room for them


class Shards:
    """`num_owners` shards of `d` entries, each of `size`; the last ones may have unused entries."""

    def __init__(self, d: int, num_owners: int) -> None:
        self._d, self._num_owners = d, num_owners
        self.size = collectives.shard_size(d, num_owners)

    def split(self, indices: Tensor, room: int) -> list[Piece]:
        """Return the pieces of `indices` `(k,)`, by owner, each in at most `room` slots."""
        block = indices >> BLOCK_BITS
        turn = block // self._num_owners
        owners = torch.where(indices < self._d, block - turn * self._num_owners, self._num_owners)
        local = (turn << BLOCK_BITS) + (indices & BLOCK - 1)
        local = torch.cat([local, local.new_full((1,), self.size)])
        pieces = []
        for owner in range(self._num_owners):
            hits = owners == owner
            found = places(hits, room)
            pieces.append(Piece(found, local[found], hits.sum(dtype=torch.int32)))
        return pieces

    def join(self, indices: Tensor, owner: int) -> Tensor:
        """Map `indices` `(k,)` of the owner's shard to indices of the bucket, in the same order.

        Indices past the end of the shard map to indices past the end of the bucket, so unused slots stay unused.
        """
        block = (indices >> BLOCK_BITS) * self._num_owners + owner
        return (block << BLOCK_BITS) + (indices & BLOCK - 1)

    def add(self, values: Tensor, owner: int, shard: Tensor) -> None:
        """Add `shard` `(size,)` to the owner's entries of `values` `(d,)`, in place."""
        stride = BLOCK * self._num_owners
        whole = self._d // stride
        rounds = values[: whole * stride].view(whole, self._num_owners, BLOCK)[:, owner]
        rounds += shard[: whole * BLOCK].view(whole, BLOCK)
        start = whole * stride + owner * BLOCK
        rest = values[start : start + BLOCK]
        rest += shard[whole * BLOCK :][: len(rest)]


class Sharded:
    """An aggregator of two collectives: payloads go to the owners, and the owners' means to all."""

    def __init__(self, config: SparseConfig, bucket: Bucket, connection: Connection, device: torch.device) -> None:
        self._bucket, self._connection, self._dtype = bucket, connection, config.values
        self._shards = Shards(bucket.num_elements, connection.num_workers)
        self._room = 0  # entries of a payload for one owner; 0: not yet known
        self._next_room = 0
        self._factor = 1.0
        self._nothing = torch.zeros(len(Header._fields), dtype=torch.int32, device=device)  # the empty header of means
        # The means of this rank's shard that were not sent yet.
        self._kept, self._next_kept = (torch.zeros(self._shards.size, device=device) for _ in range(2))

    def num_bytes(self, capacity: int) -> int:
        room, kept = self._to_owner(capacity).layout.capacity, self._to_all(capacity).layout.capacity
        return collectives.sharded(self._shards.size, room, kept, self._dtype, self._connection.num_workers).bytes

    def reduce(self, selection: Selection, capacity: int, *, loss: Tensor, memory: Memory, out: Tensor) -> Unread:
        rows, to_owners = self._to_owners(selection, capacity, loss, memory)
        self._sum(rows, capacity)
        to_all = self._to_everybody(capacity, out)
        words = [to_owners, to_all, Payload.headers(rows).flatten()]
        return Unread(torch.cat(words), partial(self._read, capacity))

    def _to_owners(self, selection: Selection, capacity: int, loss: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Send each owner its entries. Returns the payloads received, and the number of entries sent `(1,)`."""
        payload = self._to_owner(capacity)
        (indices, values), room = selection.entries, payload.layout.capacity
        pieces = self._shards.split(indices, room)
        told = header(selection, loss, most=torch.stack([piece.wanted for piece in pieces]).amax())
        rows, errors = [], torch.cat([values, values.new_zeros(1)])  # beyond the room, an entry's error is all of it
        for piece in pieces:
            words, rounded_off = payload.pack(told, Entries(piece.indices, errors[piece.places]))
            errors[piece.places] = rounded_off
            rows.append(words)
        memory.keep(self._bucket.span, Entries(indices, errors[:-1]))
        received = self._connection.all_to_all(torch.stack(rows), payload.parts(copies=len(rows)))
        return received, torch.stack([piece.wanted.clamp(max=room) for piece in pieces]).sum(0, True, dtype=torch.int32)

    def _sum(self, rows: Tensor, capacity: int) -> None:
        """Add the mean of the ranks' entries in this rank's shard to the means that it has kept."""
        payload = self._to_owner(capacity)
        mean = torch.mul(self._kept, self._factor, out=self._next_kept)
        for row in rows:
            scatter_add(mean, payload.entries(row), 1 / len(rows))

    def _to_everybody(self, capacity: int, out: Tensor) -> Tensor:
        """Send the largest means to all, keep the others, and overwrite `out` with what all owners sent.

        Returns the number of means that this rank sent `(1,)`.
        """
        payload, mean = self._to_all(capacity), self._next_kept
        chosen = take(mean, largest(mean, payload.layout.capacity))
        words, errors = payload.pack(self._nothing, chosen)
        clear(mean, chosen.indices)
        scatter_add(mean, Entries(chosen.indices, errors))
        rows = self._connection.all_gather(words, payload.parts())
        out.zero_()
        for owner, row in enumerate(rows):
            indices, values = payload.entries(row)
            scatter_add(out, Entries(self._shards.join(indices, owner), values))
        return num_used(chosen.indices, len(mean))

    def _read(self, capacity: int, words: Tensor) -> Report:
        to_owners, to_all = words[:2].tolist()
        copies = self._connection.num_workers
        self._connection.charge(self._to_owner(capacity).unused(to_owners, copies), collectives.all_to_all)
        self._connection.charge(self._to_all(capacity).unused(to_all), collectives.all_gather)
        headers = read_headers(words[2:])
        self._next_room = collectives.capacity_for(max(each.most for each in headers), self._shards.size)
        return report(headers, capacity)

    def _to_owner(self, capacity: int) -> Payload:
        room = self._room or collectives.capacity_for(capacity / self._connection.num_workers, self._shards.size)
        return Payload(self._shards.size, room, self._dtype)

    def _to_all(self, capacity: int) -> Payload:
        return Payload(
            self._shards.size, min(self._shards.size, -(-capacity // self._connection.num_workers)), self._dtype
        )

    def release(self, values: Tensor) -> None:
        self._shards.add(values, self._connection.rank, self._kept * (self._factor * self._connection.num_workers))
        self._next_kept.zero_()
        self._next_room = self._room

    def rescale(self, factor: float) -> None:
        self._factor = factor

    def commit(self) -> None:
        self._kept, self._next_kept = self._next_kept, self._kept
        self._room = self._next_room
        self._factor = 1.0

    def tensors(self) -> dict[str, Tensor]:
        return {"kept": self._kept}

    def scalars(self) -> dict[str, Any]:
        return {"room": self._room}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._room = scalars["room"]


def owned(kept: Kept, bucket: Bucket) -> Tensor:
    """Return the means `(bucket.num_elements,)` that an old rank kept as an owner; zeros if there were no owners."""
    means = torch.zeros(bucket.num_elements)
    shard = kept.tensors.get(f"aggregate.{bucket.index}.kept")
    if shard is not None:
        Shards(bucket.num_elements, kept.of).add(means, kept.index, shard)
    return means
