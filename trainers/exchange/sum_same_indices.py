"""Sums of entries that all ranks selected alike: only their values travel."""

import math
from functools import partial

import torch
from torch import Tensor

from trainers.exchange.aggregate import Forgetful, Report, Unread
from trainers.exchange.connection import Connection
from trainers.exchange.dense import all_reduce_mean
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.step_result import all_finite, loss_if
from trainers.traffic import cost
from trainers.traffic.buckets import Bucket


class Shared(Forgetful):
    """One all-reduce of the values, with the loss before them: the same bytes whatever N."""

    def __init__(self, bucket: Bucket, connection: Connection) -> None:
        self._bucket, self._connection = bucket, connection

    def num_bytes(self, capacity: int) -> int:
        return cost.shared(capacity, self._connection.num_workers).bytes

    def reduce(self, selection: Selection, capacity: int, *, loss: Tensor, memory: Memory, out: Tensor) -> Unread:
        indices, values = selection.entries
        loss_sum = all_reduce_mean(values, self._connection, loss_if(selection.is_finite, loss).reshape(1))
        out.zero_()
        out[indices] = values
        told = loss_if(all_finite(values), loss_sum)
        return Unread(told.view(torch.int32), partial(self._read, len(indices)))

    def _read(self, count: int, words: Tensor) -> Report:
        loss = words.view(torch.float32).item() / self._connection.num_workers
        return Report(loss, is_finite=math.isfinite(loss), most_wanted=count, sent=count)
