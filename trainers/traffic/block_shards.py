"""Assign the blocks of a bucket to the ranks that sum them: a run of whole blocks each. Pure Python."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class BlockShards:
    """`d` entries in `num_owners` shards, one behind the other; the last ones may be shorter than others, or empty.

    No block straddles two shards, so that owners together send what one server of all entries would.
    """

    d: int
    num_owners: int
    most: int  # entries of a block

    @property
    def num_blocks(self) -> int:
        """Blocks of the first shard."""
        return math.ceil(self.d / (self.num_owners * self.most))

    @property
    def block(self) -> int:
        """Entries that share a scale: as even as the shards, so that little room is unused."""
        return math.ceil(self.d / (self.num_owners * self.num_blocks))

    @property
    def size(self) -> int:
        """Entries of the first shard, the largest."""
        return self.num_blocks * self.block

    def span(self, owner: int) -> slice:
        """Return an owner's entries of the bucket."""
        return slice(min(self.d, owner * self.size), min(self.d, (owner + 1) * self.size))
