"""The configurations of exchanges that send some entries and keep the others in a memory. Pydantic only."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from trainers.spec.exchange import Coefficient, CorrectedConfig, Density, SteeredConfig
from trainers.spec.ranges import Conflict
from trainers.traffic.buckets import Bucket
from trainers.traffic.collectives import (
    Traffic,
    capacity_for,
    dense_bucket,
    dense_instead,
    gather,
    shard_size,
    sharded,
)


class SparseConfig(CorrectedConfig):
    """An exchange that sends some entries and keeps the others in a memory."""

    memory: Literal["residual", "ef21", "none"] = Field(
        "residual",
        description="what becomes of the entries that are not sent: error feedback, EF21 (differences), or nothing",
    )
    momentum_correction: Coefficient | None = Field(
        None, description="momentum before compression (DGC); the optimizer's own must then be 0"
    )
    nesterov: bool = Field(False, description="of the momentum correction")
    masking: bool = Field(True, description="momentum correction: clear the momentum of what was sent")
    values: Literal["float16", "float32", "sign"] = Field(
        "float16",
        description="of an entry on the wire; what that rounds off stays in the memory. sign: a bit each, and the mean "
        "magnitude",
    )
    aggregate: Literal["auto", "gather", "sharded"] = Field(
        "auto",
        description="gather: each payload goes to all ranks; sharded: each rank sums a range; auto: the fewest bytes",
    )

    @property
    def without_momentum(self) -> str | None:
        return None if self.momentum_correction is None else "momentum_correction: null"

    def is_sharded(self, num_workers: int) -> bool:
        """Return whether selections are summed by owners: for `auto`, where that sends fewer bytes, at any level."""
        return self.aggregate == "sharded" or (self.aggregate == "auto" and num_workers > 2)

    def conflicts(self) -> Iterator[Conflict]:
        yield from super().conflicts()
        if self.momentum_correction is not None and self.memory != "residual":
            yield Conflict("/memory", self.memory, f"`momentum_correction` needs `memory: residual`, got {self.memory}")
        if self.lr_corrected and self.memory != "residual":
            yield Conflict("/lr_corrected", True, f"`lr_corrected` needs `memory: residual`, got {self.memory}")
        if self.lr_corrected and self.momentum_correction is not None:
            message = (
                f"`lr_corrected` does not go with `momentum_correction`, got {self.momentum_correction:g}: give "
                "`momentum_correction: null`, or leave `lr_corrected` out"
            )
            yield Conflict("/lr_corrected", True, message)
        if self.nesterov and self.momentum_correction is None:
            yield Conflict("/nesterov", True, "`nesterov` needs `momentum_correction`: a number in [0, 1)")

    def difference_conflict(self) -> str | None:
        if self.momentum_correction is not None:
            return f"`{self.kind}` here accumulates the momentum of gradients"
        if self.memory != "residual" or self.lr_corrected:
            return f"`{self.kind}` here has no plain residual"
        return None

    def room(self, d: int, density: float) -> int:
        """Return the entries to make room for in a part of `d` entries."""
        return capacity_for(density * d, d)

    def capacity(self, bucket: Bucket, density: float) -> int:
        """Return the entries that a bucket's payload has room for."""
        return self.room(bucket.num_elements, density)

    def selected_traffic(self, d: int, num_workers: int, capacity: int) -> Traffic:
        """Return the traffic of a bucket of `d` entries whose payloads have room for `capacity`."""
        if not self.is_sharded(num_workers):
            return gather(d, capacity, self.values, num_workers)
        size = shard_size(d, num_workers)
        room = capacity_for(capacity / num_workers, size)
        return sharded(size, room, min(size, -(-capacity // num_workers)), self.values, num_workers)

    def bucket_traffic(self, bucket: Bucket, num_workers: int, level: float | None) -> Traffic:
        """Return the traffic of a bucket at the density `level`; it goes densely where that takes fewer bytes."""
        if level is None or not 0 < level <= 1:
            raise ValueError(f"`level` must be a density in (0, 1] for a sparse exchange, got {level}")
        if level == 1:
            return dense_bucket(bucket, num_workers)
        return self.fewest_bytes(bucket, num_workers, self.capacity(bucket, level))

    def fewest_bytes(self, bucket: Bucket, num_workers: int, capacity: int) -> Traffic:
        """Return the traffic of a bucket whose payloads have room for `capacity`, or dense if that is less."""
        d = bucket.num_elements
        dense = dense_instead(d, num_workers)
        sparse = dense if capacity == d else self.selected_traffic(d, num_workers, capacity)
        return dense if sparse.bytes > dense.bytes else sparse


class ByDensity(SparseConfig, SteeredConfig):
    """A sparse exchange whose level is a density."""

    density: Density | tuple[Density, Density] = Field(description="share of entries sent, in (0, 1]")

    @property
    def level(self) -> float | tuple[float, float]:
        return self.density
