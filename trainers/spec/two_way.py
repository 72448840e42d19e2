"""The configurations of exchanges that compress both ways: codes to owners of entries, codes of their sums to all.

Pydantic only.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from trainers.spec.exchange import ExchangeBase, Period
from trainers.spec.optimizer import OptimizerBase
from trainers.traffic.block_shards import BlockShards
from trainers.traffic.buckets import Bucket, split
from trainers.traffic.collectives import MeanTraffic, Traffic, all_gather, all_to_all
from trainers.traffic.sizes import WORD_BYTES, CodedLayout

Shapes = Sequence[Sequence[int]]


class TwoWayConfig(ExchangeBase):
    """An exchange that sends a code of each entry, and a scale of each block, in every direction.

    Unless it says otherwise, the code is a sign, and the scale the mean magnitude.
    """

    follows_rate: ClassVar[bool] = True  # whether errors are rescaled so that rate x error stays as it was

    block: int = Field(4096, ge=8, le=2**24, description="neighbouring entries that share a magnitude, at most")

    def has_server(self, num_workers: int) -> bool:
        """Return whether codes go to their entries' owners, and their sums' codes to all; else all codes go to all."""
        return True

    def bucket_traffic(self, bucket: Bucket, num_workers: int, level: float | None) -> Traffic:
        """Return the traffic of a bucket's codes, each shard's with the loss."""
        row = self.row_bytes(BlockShards(bucket.num_elements, num_workers, self.block))
        codes = num_workers * (WORD_BYTES + row)
        if not self.has_server(num_workers):
            return all_gather(codes, num_workers)
        return all_to_all(codes, num_workers) + all_gather(row, num_workers)

    def layout(self, num_entries: int, block: int) -> CodedLayout:
        """Return what is sent of neighbouring entries in blocks of `block`, the last of which may be shorter."""
        return CodedLayout(num_entries, bits=1, num_scales=math.ceil(num_entries / block))

    def row_bytes(self, shards: BlockShards) -> int:
        """Return the bytes in which what is sent of any shard fits: those of the first, the largest."""
        largest = shards.span(0)
        return self.layout(largest.stop - largest.start, shards.block).num_bytes

    def difference_conflict(self) -> str | None:
        return f"the errors of `{self.kind}` follow the learning rate of gradients" if self.follows_rate else None


class DriftingConfig(TwoWayConfig):
    """An exchange whose workers apply by themselves what they do not send, so that their parameters differ."""

    fitting_knobs: ClassVar[str] = "momentum: 0.0"  # of `sgd`, with which this goes

    period: Period

    @property
    def drifts(self) -> bool:
        return True

    def meeting_traffic(self, shapes: Shapes, *, num_workers: int, num_iterates: int = 1) -> Traffic:
        """Return the traffic of a step in which workers meet.

        `num_iterates` is 2 with Schedule-Free, whose z is averaged too, and else 1.
        """
        raise NotImplementedError(f"`{self.kind}` does not say what an average sends")

    def mean_traffic(self, shapes: Shapes, *, num_workers: int, num_iterates: int = 1) -> MeanTraffic:
        """Return the mean over the steps of a period, of which the last ends in an average."""
        step = self.step_traffic(split(shapes, self), num_workers, None)
        average = self.meeting_traffic(shapes, num_workers=num_workers, num_iterates=num_iterates)
        others = self.period - 1
        return MeanTraffic(
            bytes=(others * step.bytes + average.bytes) / self.period,
            rounds=(others * step.rounds + average.rounds) / self.period,
            awaited=(others * step.awaited + average.awaited) / self.period,
        )

    def fits(self, optimizer: OptimizerBase) -> bool:
        """Return whether what workers apply by themselves cancels out under `optimizer`.

        The update must be linear in each worker's own gradient, with the same factor, and remember nothing of it that
        no average resets.
        """
        return is_plain(optimizer) or optimizer.kind == "schedulefree_sgd"

    def optimizer_conflict(self, optimizer: OptimizerBase, *, clip: float | None) -> str | None:
        if clip is not None:
            return (
                f"with `{self.kind}` each worker has a gradient of its own, and `clip` {clip:g} would scale each by "
                "another factor: give `clip: null`, or `exchange: {kind: doublesqueeze}`"
            )
        if self.fits(optimizer):
            return None
        return (
            f"with `{self.kind}` each worker steps by a gradient of its own, and under this `{optimizer.kind}` what "
            f"workers apply apart would not cancel out: give `optimizer: {{kind: sgd, {self.fitting_knobs}}}`, or "
            "`exchange: {kind: doublesqueeze}`"
        )


def is_plain(optimizer: OptimizerBase) -> bool:
    """Return whether a step is the learning rate times the gradient, and decay."""
    return optimizer.kind == "sgd" and getattr(optimizer, "momentum", None) == 0
