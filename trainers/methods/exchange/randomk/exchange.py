"""Entries drawn at random, the same on all ranks, so that only values travel and can be summed on their way.

Stich et al., *Sparsified SGD with Memory*, NeurIPS 2018. Each entry is drawn with probability k / d, and at most once.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainers.exchange.aggregate import Forgetful, Report, Unread
from trainers.exchange.by_count import ByCount
from trainers.exchange.connection import Connection
from trainers.exchange.dense import all_reduce_mean
from trainers.exchange.gradients import Gradients
from trainers.exchange.memory import Memory, Selection
from trainers.exchange.sparse import SparseExchange
from trainers.exchange.step_result import all_finite, loss_if
from trainers.methods.exchange.randomk.spec import RandomKConfig, values_traffic
from trainers.traffic.buckets import Bucket

#: Drawn entries are sorted below this share of all. From there on it is faster to mark them in a mask and read that.
SPARSE = 0.01


def random_entries(num_entries: int, count: int, *, seed: Sequence[int]) -> Tensor:
    """Return `count` indices (int32, ascending) below `num_entries`.

    `seed` is the run's, the step and the bucket: whoever has the same draws the same.
    """
    drawn = np.random.default_rng(seed).choice(num_entries, count, replace=False, shuffle=False)
    if count < SPARSE * num_entries:
        return torch.from_numpy(np.sort(drawn).astype(np.int32))
    hits = np.zeros(num_entries, np.bool_)
    hits[drawn] = True
    return torch.from_numpy(np.flatnonzero(hits).astype(np.int32))


def random_block(num_entries: int, count: int, *, seed: Sequence[int]) -> Tensor:
    """Return the indices (int32, ascending) of `count` neighbours at a random place; the first follows the last.

    Far cheaper than single entries to draw, to read and to write.
    """
    start = int(np.random.default_rng(seed).integers(num_entries))
    num_wrapped = max(0, start + count - num_entries)
    runs = (torch.arange(num_wrapped), torch.arange(start, min(start + count, num_entries)))
    return torch.cat(runs).int()


class Shared(Forgetful):
    """One all-reduce of the values, with the loss before them: the same bytes whatever N."""

    def __init__(self, bucket: Bucket, connection: Connection) -> None:
        self._bucket, self._connection = bucket, connection

    def num_bytes(self, capacity: int) -> int:
        return values_traffic(capacity, self._connection.num_workers).bytes

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
        if gradient.is_cuda:  # from pinned memory: the host does not wait until such a copy has its turn
            drawn = drawn.pin_memory().to(gradient.device, non_blocking=True)
        entries = memory.take(bucket.span, drawn)
        if self._is_lossy:
            entries.values.mul_(len(gradient) / capacity)
        return Selection.of(entries, capacity, finite)

    def observe(self, reports: Sequence[Report]) -> None:
        self._taken += 1

    def scalars(self) -> dict[str, Any]:
        return {"taken": self._taken}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._taken = scalars["taken"]


def build(config: RandomKConfig, buffer: Gradients, connection: Connection, *, seed: int) -> SparseExchange:
    """Return the exchange of `config`: all ranks select the same entries, so sums need no indices."""
    selector = AtRandom(config, seed=seed)
    return SparseExchange(config, selector, buffer, connection, aggregator=lambda bucket: Shared(bucket, connection))
