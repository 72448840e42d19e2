"""As many of a bucket's largest entries as the density says."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trainers import cost
from trainers.exchange.aggregate import Report
from trainers.exchange.buckets import Bucket, Layer
from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.compressors.sizes import num_selected
from trainers.exchange.compressors.threshold import LEAST_THRESHOLD
from trainers.exchange.compressors.topk import largest
from trainers.exchange.config import ByDensity, DgcConfig
from trainers.exchange.kernels.quantile import reached_by
from trainers.exchange.levels.level import LayerLevels, Level, level_of
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.outcome import is_finite
from trainers.exchange.selectors.selector import Count
from trainers.exchange.wire import Wire


class ByCount:
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

    def prepare(self, level: Level, buffer: GradientBuffer, memory: Memory, wire: Wire) -> bool:
        self._level = level if isinstance(level, LayerLevels) else self._config.check_level(level)
        return True

    def _density(self, part: Bucket | Layer) -> float:
        return self._config.check_level(level_of(part, self._level))

    def capacity(self, bucket: Bucket) -> int:
        return sum(self._room(part) for part in self._parts(bucket))

    def select(self, bucket: Bucket, gradient: Tensor, memory: Memory, capacity: int) -> Selection:
        found = [self._select(part, bucket, gradient, memory) for part in self._parts(bucket)]
        return Selection(
            torch.cat([each.indices for each in found]),
            torch.cat([each.values for each in found]),
            wanted=sum(each.wanted for each in found),
            is_finite=all(each.is_finite for each in found),
        )

    def _select(self, part: Bucket | Layer, bucket: Bucket, gradient: Tensor, memory: Memory) -> Selection:
        span, first = slice(part.start, part.stop), part.start - bucket.start
        own = gradient[first : first + part.num_elements]
        if self._exact:
            found = take_largest(memory, own, span, self._count(part))
        else:
            threshold = max(reached_by(memory.sample(own, span), self._density(part)), LEAST_THRESHOLD)
            found = memory.select(own, span, threshold=threshold, capacity=self._room(part))
        return found._replace(indices=found.indices + first)

    def _parts(self, bucket: Bucket) -> Sequence[Bucket | Layer]:
        return bucket.layers if self._by_layer else (bucket,)

    def _count(self, part: Bucket | Layer) -> int:
        return num_selected(part.num_elements, self._density(part))

    def _room(self, part: Bucket | Layer) -> int:
        d = part.num_elements
        return self._count(part) if self._exact else cost.capacity_for(self._density(part) * d, d, cost.COUNT_MARGIN)

    def count(self, bucket: Bucket, gradient: Tensor, memory: Memory) -> Count:
        return Count(sum(self._count(part) for part in self._parts(bucket)))

    def observe(self, reports: Sequence[Report]) -> None:
        return

    def scalars(self) -> dict[str, Any]:
        return {}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        return


class Dgc(ByCount):
    """Deep gradient compression's: each rank clips its gradient first (Lin et al., 2018)."""

    def __init__(self, config: DgcConfig) -> None:
        super().__init__(config, exact=False, by_layer=False)
        self._clip = config.clip

    def prepare(self, level: Level, buffer: GradientBuffer, memory: Memory, wire: Wire) -> bool:
        if self._clip is not None:
            buffer.wait_for_all()
            buffer.clip(self._clip / math.sqrt(wire.num_workers))
        return super().prepare(level, buffer, memory, wire)


def take_largest(memory: Memory, gradient: Tensor, span: slice, count: int) -> Selection:
    """Take exactly the `count` largest corrected entries, in ascending order of index."""
    corrected = memory.corrected(gradient, span)
    indices = largest(corrected, count)
    finite = is_finite(corrected)
    return Selection(indices, memory.take(span, indices), len(indices), finite)
