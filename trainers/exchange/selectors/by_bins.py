"""What stands out of its bin of neighbours (AdaComp: Chen et al., 2018)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trainers.exchange.aggregate import Report
from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.compressors import adacomp
from trainers.exchange.config import AdaCompConfig
from trainers.exchange.connection import Connection
from trainers.exchange.kernels.entries import Entries
from trainers.exchange.kernels.scatter import together
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.selectors.selector import Count
from trainers.exchange.step_result import all_finite
from trainers.methods.levels.level import Level
from trainers.traffic import cost
from trainers.traffic.buckets import Bucket


class ByBins:
    """How many entries that is follows from the gradient; what finds no room waits in the memory."""

    threshold = None
    sends_all = False

    def __init__(self, config: AdaCompConfig, buckets: Sequence[Bucket]) -> None:
        self._config, self._sizes = config, [bucket.num_elements for bucket in buckets]
        self._capacities = [cost.first_capacity(bucket, config) for bucket in buckets]

    def prepare(self, level: Level, buffer: GradientBuffer, memory: Memory, connection: Connection) -> bool:
        return True

    def capacity(self, bucket: Bucket) -> int:
        return self._capacities[bucket.index]

    def select(self, bucket: Bucket, gradient: Tensor, memory: Memory, capacity: int) -> Selection:
        corrected = memory.corrected(gradient, bucket.span)
        finite, (found, wanted) = all_finite(corrected), self._find(bucket, gradient, corrected, capacity)
        indices, values = sent = Entries(found.indices[:capacity], found.values[:capacity])
        memory.keep(bucket.span, Entries(indices, memory.take(bucket.span, indices).values - values))
        return Selection.of(sent, wanted, finite)

    def _find(self, bucket: Bucket, gradient: Tensor, corrected: Tensor, room: int) -> tuple[Entries, Tensor]:
        """Return entries of the bucket that qualify, among them the first `room`, and how many there are."""
        spans = [bucket.within(layer) for layer in bucket.layers]
        found, wanted = zip(
            *(
                adacomp.select(corrected[span], gradient[span], bin_size=cost.bin_size(layer, self._config), room=room)
                for layer, span in zip(bucket.layers, spans, strict=True)
            ),
            strict=True,
        )
        return together(found, spans), torch.stack(wanted).sum(dtype=torch.int32)

    def count(self, bucket: Bucket, gradient: Tensor, memory: Memory) -> Count:
        return Count.of(self._find(bucket, gradient, memory.corrected(gradient, bucket.span), 0)[1], gradient)

    def observe(self, reports: Sequence[Report]) -> None:
        wanted = [report.most_wanted for report in reports]
        self._capacities = [cost.capacity_for(most, d) for most, d in zip(wanted, self._sizes, strict=True)]

    def scalars(self) -> dict[str, Any]:
        return {"capacities": self._capacities}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._capacities = list(scalars["capacities"])
