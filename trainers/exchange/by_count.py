"""As many of a bucket's largest entries as the density says."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainers.exchange.aggregate import Report
from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.kernels.largest import largest
from trainers.exchange.kernels.quantile import LEAST_THRESHOLD, reached_by
from trainers.exchange.kernels.scatter import together
from trainers.exchange.level import LayerLevels, Level, level_of
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.selector import Count
from trainers.exchange.step_result import all_finite
from trainers.snapshot import WithoutScalars
from trainers.spec.sparse import ByDensity
from trainers.traffic import collectives
from trainers.traffic.buckets import Bucket, Layer
from trainers.traffic.sizes import num_selected


class ByCount(WithoutScalars):
    """The largest entries of each bucket, or of each layer, as many as the density says (Alistarh et al., 2018).

    Sampled, the cut-off is a quantile that each rank takes for itself in each step; what is above it and does not fit
    waits in the memory.
    """

    threshold = None

    def __init__(self, config: ByDensity, *, exact: bool, by_layer: bool) -> None:
        self._config, self._exact, self._by_layer = config, exact, by_layer
        self._level: Level = 1.0

    @property
    def sends_all(self) -> bool:
        return self._level == 1.0

    def prepare(self, level: Level, buffer: Gradients, memory: Memory, connection: Connection) -> bool:
        self._level = level if isinstance(level, LayerLevels) else self._config.check_level(level)
        return True

    def _density(self, part: Bucket | Layer) -> float:
        return self._config.check_level(level_of(part, self._level))

    def capacity(self, bucket: Bucket) -> int:
        return sum(self._room(part) for part in self._parts(bucket))

    def select(self, bucket: Bucket, gradient: Tensor, memory: Memory, capacity: int) -> Selection:
        parts = self._parts(bucket)
        spans = [bucket.within(part) for part in parts]
        found = [self._select(part, gradient[span], memory) for part, span in zip(parts, spans, strict=True)]
        return Selection.of(
            together([each.entries for each in found], spans),
            torch.stack([each.wanted for each in found]).sum(dtype=torch.int32),
            torch.stack([each.is_finite for each in found]).all(),
        )

    def _select(self, part: Bucket | Layer, gradient: Tensor, memory: Memory) -> Selection:
        span = slice(part.start, part.stop)
        if self._exact:
            return take_largest(memory, gradient, span, self._count(part))
        threshold = reached_by(memory.sample(gradient, span), self._density(part)).clamp(min=LEAST_THRESHOLD)
        return memory.select(gradient, span, threshold=threshold, capacity=self._room(part))

    def _parts(self, bucket: Bucket) -> Sequence[Bucket | Layer]:
        return bucket.layers if self._by_layer else (bucket,)

    def _count(self, part: Bucket | Layer) -> int:
        return num_selected(part.num_elements, self._density(part))

    def _room(self, part: Bucket | Layer) -> int:
        d = part.num_elements
        return (
            self._count(part)
            if self._exact
            else collectives.capacity_for(self._density(part) * d, d, collectives.COUNT_MARGIN)
        )

    def count(self, bucket: Bucket, gradient: Tensor, memory: Memory) -> Count:
        return Count.of(sum(self._count(part) for part in self._parts(bucket)), gradient)

    def observe(self, reports: Sequence[Report]) -> None:
        return


def take_largest(memory: Memory, gradient: Tensor, span: slice, count: int) -> Selection:
    """Take exactly the `count` largest corrected entries, in ascending order of index."""
    corrected = memory.corrected(gradient, span)
    indices, finite = largest(corrected, count), all_finite(corrected)
    return Selection.of(memory.take(span, indices), (indices < len(gradient)).sum(dtype=torch.int32), finite)
