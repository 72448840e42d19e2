"""Assign a bucket's entries to ranks: small blocks in turn, so that each owner gets its share of every layer."""

from typing import NamedTuple

import torch
from torch import Tensor

from trainers.exchange.kernels.scatter import places
from trainers.traffic import collectives

BLOCK = collectives.SHARD_BLOCK
#: Shifts and masks take a tenth of the time of a division of integers, and of its remainder.
BLOCK_BITS = BLOCK.bit_length() - 1
assert BLOCK == 1 << BLOCK_BITS


class Piece(NamedTuple):
    """The entries of a selection that belong to one owner, as far as there is room for them."""

    places: Tensor  # (k,) int32, in the selection; behind it, in unused slots
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
        """Return where the entries at `indices` `(k,)` of the owner's shard lie in the bucket, in the same order.

        Behind the bucket lies what is behind the shard: unused slots stay unused.
        """
        block = (indices >> BLOCK_BITS) * self._num_owners + owner
        return (block << BLOCK_BITS) + (indices & BLOCK - 1)

    def add(self, values: Tensor, owner: int, shard: Tensor) -> None:
        """Add `shard` `(size,)` to the owner's entries of `values` `(d,)`: those of whole rounds, and the rest."""
        stride = BLOCK * self._num_owners
        whole = self._d // stride
        rounds = values[: whole * stride].view(whole, self._num_owners, BLOCK)[:, owner]
        rounds += shard[: whole * BLOCK].view(whole, BLOCK)
        start = whole * stride + owner * BLOCK
        rest = values[start : start + BLOCK]
        rest += shard[whole * BLOCK :][: len(rest)]
