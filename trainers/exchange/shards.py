"""Which rank owns which entries of a bucket: small blocks in turn, so that each owner gets its share of every layer."""

from typing import NamedTuple

from torch import Tensor

from trainers import cost

BLOCK = cost.SHARD_BLOCK


class Piece(NamedTuple):
    """The entries of a selection that belong to one owner."""

    places: Tensor  # (k,) int64, in the selection
    indices: Tensor  # (k,) int32, in the owner's shard, ascending


class Shards:
    """`num_owners` shards of `d` entries, each of `size`; the last ones may have unused entries."""

    def __init__(self, d: int, num_owners: int) -> None:
        self._d, self._num_owners = d, num_owners
        self.size = cost.shard_size(d, num_owners)

    def split(self, indices: Tensor) -> list[Piece]:
        """Return the pieces of ascending `indices` `(k,)`, by owner."""
        block = indices // BLOCK
        owners, local = block % self._num_owners, (block // self._num_owners) * BLOCK + indices % BLOCK
        pieces = []
        for owner in range(self._num_owners):
            places = (owners == owner).nonzero().flatten()
            pieces.append(Piece(places, local[places]))
        return pieces

    def join(self, indices: Tensor, owner: int) -> Tensor:
        """Return where the entries at `indices` `(k,)` of the owner's shard lie in the bucket, in the same order."""
        return (indices // BLOCK * self._num_owners + owner) * BLOCK + indices % BLOCK

    def add(self, values: Tensor, owner: int, shard: Tensor) -> None:
        """Add `shard` `(size,)` to the owner's entries of `values` `(d,)`: those of whole rounds, and the rest."""
        stride = BLOCK * self._num_owners
        whole = self._d // stride
        rounds = values[: whole * stride].view(whole, self._num_owners, BLOCK)[:, owner]
        rounds += shard[: whole * BLOCK].view(whole, BLOCK)
        start = whole * stride + owner * BLOCK
        rest = values[start : start + BLOCK]
        rest += shard[whole * BLOCK :][: len(rest)]
