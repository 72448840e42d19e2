"""Top-k: the largest entries of each layer, each bucket, or the whole gradient (Alistarh et al., 2018)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trainers.exchange.aggregate import Report
from trainers.exchange.by_count import ByCount
from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.kernels.quantile import LEAST_THRESHOLD, reached_by
from trainers.exchange.level import Level, common
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.selector import Count, Selector, next_capacities
from trainers.exchange.sparse import SparseExchange
from trainers.methods.exchange.topk.by_efficiency import ByEfficiency
from trainers.methods.exchange.topk.spec import TopKConfig
from trainers.spec.levels import CatConfig
from trainers.traffic import collectives
from trainers.traffic.buckets import Bucket
from trainers.traffic.sizes import num_selected


class Globally:
    """The largest entries of the whole gradient: one cut-off for all buckets, of each rank for itself."""

    threshold = None

    def __init__(self, config: TopKConfig, buckets: Sequence[Bucket]) -> None:
        self._config, self._sizes = config, [bucket.num_elements for bucket in buckets]
        self._density, self._threshold = 1.0, torch.zeros(())
        self._level: float | None = None  # that the capacities belong to
        self._capacities: list[int] = []

    @property
    def sends_all(self) -> bool:
        return self._density == 1.0

    def prepare(self, level: Level, buffer: Gradients, memory: Memory, connection: Connection) -> bool:
        self._density = self._config.check_level(common(level))
        gradient = buffer.wait_for_all()
        if self._config.selection == "exact":
            magnitudes = memory.corrected(gradient, slice(None)).abs()
            rank = num_selected(len(magnitudes), self._density)
            reached = magnitudes.kthvalue(len(magnitudes) - rank + 1).values
        else:
            reached = reached_by(memory.sample(gradient, slice(None)), self._density)
        self._threshold = reached.clamp(min=LEAST_THRESHOLD)
        if self._level != self._density:
            self._level = self._density
            self._capacities = [collectives.capacity_for(self._density * d, d) for d in self._sizes]
        return True

    def capacity(self, bucket: Bucket) -> int:
        return self._capacities[bucket.index]

    def select(self, bucket: Bucket, gradient: Tensor, memory: Memory, capacity: int) -> Selection:
        return memory.select(gradient, bucket.span, threshold=self._threshold, capacity=capacity)

    def count(self, bucket: Bucket, gradient: Tensor, memory: Memory) -> Count:
        return Count.of((memory.corrected(gradient, bucket.span).abs() >= self._threshold).sum(), gradient)

    def observe(self, reports: Sequence[Report]) -> None:
        self._capacities = next_capacities(reports, self._sizes)

    def scalars(self) -> dict[str, Any]:
        return {"level": self._level, "capacities": self._capacities}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._level, self._capacities = scalars["level"], list(scalars["capacities"])


def build(config: TopKConfig, buffer: Gradients, connection: Connection, *, seed: int) -> SparseExchange:
    """Return the exchange of `config`; under `levels: {kind: cat}` each message is as long as it is worth."""
    selector: Selector
    if isinstance(config.levels, CatConfig):
        selector = ByEfficiency(config, config.levels, buffer.buckets, seed=seed)
    elif config.scope == "global":
        selector = Globally(config, buffer.buckets)
    else:
        selector = ByCount(config, exact=config.selection == "exact", by_layer=config.scope == "layer")
    return SparseExchange(config, selector, buffer, connection)
