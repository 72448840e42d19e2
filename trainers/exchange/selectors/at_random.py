"""Entries drawn at random, the same on all ranks (Stich et al., 2018)."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from trainers.exchange.aggregate import Report
from trainers.exchange.compressors.randomk import random_block, random_entries
from trainers.exchange.config import RandomKConfig
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.selectors.by_count import ByCount
from trainers.exchange.step_result import all_finite
from trainers.traffic.buckets import Bucket


class AtRandom(ByCount):
    """As many entries of each bucket as the density says; which follows from seed, step and bucket.

    Without a memory values are sent times d / k, which makes their mean right.
    """

    def __init__(self, config: RandomKConfig, *, seed: int) -> None:
        super().__init__(config, exact=True, by_layer=False)
        self._seed, self._draw = seed, random_block if config.block else random_entries
        self._is_lossy = config.memory == "none"
        self._taken = 0

    def select(self, bucket: Bucket, gradient: Tensor, memory: Memory, capacity: int) -> Selection:
        finite = all_finite(memory.corrected(gradient, bucket.span))
        drawn = self._draw(len(gradient), capacity, seed=(self._seed, self._taken, bucket.index))
        entries = memory.take(bucket.span, _beside(gradient, drawn))
        if self._is_lossy:
            entries.values.mul_(len(gradient) / capacity)
        return Selection.of(entries, capacity, finite)

    def observe(self, reports: Sequence[Report]) -> None:
        self._taken += 1

    def scalars(self) -> dict[str, Any]:
        return {"taken": self._taken}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._taken = scalars["taken"]


def _beside(gradient: Tensor, drawn: Tensor) -> Tensor:
    """Return what was drawn on the host where the gradient is."""
    # From pinned memory: the host does not wait until such a copy has its turn.
    return drawn.pin_memory().to(gradient.device, non_blocking=True) if gradient.is_cuda else drawn
