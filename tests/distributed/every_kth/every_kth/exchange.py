"""Every k-th entry: the selection of a bucket's entries, and the exchange that sends them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from every_kth.spec import EveryKthConfig
from trainers.exchange.aggregate import Report
from trainers.exchange.by_count import ByCount
from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.sparse import SparseExchange
from trainers.exchange.step_result import all_finite
from trainers.traffic.buckets import Bucket


class EveryKth(ByCount):
    """As many entries as the density says, equally far from each other."""

    def __init__(self, config: EveryKthConfig) -> None:
        super().__init__(config, exact=True, by_layer=False)
        self._taken = 0  # steps

    def select(self, bucket: Bucket, gradient: Tensor, memory: Memory, capacity: int) -> Selection:
        d = len(gradient)
        chosen = (torch.arange(capacity) * d // capacity + self._taken) % d
        finite = all_finite(memory.corrected(gradient, bucket.span))
        return Selection.of(memory.take(bucket.span, chosen.sort().values.int()), capacity, finite)

    def observe(self, reports: Sequence[Report]) -> None:
        self._taken += 1

    def scalars(self) -> dict[str, Any]:
        return {"taken": self._taken}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._taken = scalars["taken"]


def build(config: EveryKthConfig, buffer: Gradients, connection: Connection, *, seed: int) -> SparseExchange:
    """Return the exchange of `config`."""
    return SparseExchange(config, EveryKth(config), buffer, connection)
