"""Sums of entries that all ranks selected alike: only their values travel."""

import math

from torch import Tensor

from trainers import cost
from trainers.exchange.aggregate import Forgetful, Report
from trainers.exchange.buckets import Bucket
from trainers.exchange.dense import all_reduce_mean
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.outcome import is_finite
from trainers.exchange.wire import Wire


class Shared(Forgetful):
    """One all-reduce of the values, with the loss before them: the same bytes whatever N."""

    def __init__(self, bucket: Bucket, wire: Wire) -> None:
        self._bucket, self._wire = bucket, wire

    def num_bytes(self, capacity: int) -> int:
        return cost.shared(capacity, self._wire.num_workers).bytes

    def reduce(self, selection: Selection, capacity: int, *, loss: float, memory: Memory, out: Tensor) -> Report:
        values, count = selection.values, len(selection.indices)
        told = values.new_tensor([loss if selection.is_finite else math.nan])
        loss_sum = all_reduce_mean(values, self._wire, told).item()
        out.zero_()
        out[selection.indices] = values
        return Report(
            loss=loss_sum / self._wire.num_workers,
            is_finite=math.isfinite(loss_sum) and is_finite(values),
            most_wanted=count,
            sent=count,
        )
