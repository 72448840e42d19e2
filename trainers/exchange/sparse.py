"""Sparse exchanges: a selector chooses the entries to send, a memory keeps the others, an aggregator sums them.

Each bucket takes one or two collectives, whose shapes all ranks know. These also carry the loss, a finite flag and the
number of wanted entries. So all ranks agree on the next capacity, and stop at the same step if a gradient is not
finite.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trainers.exchange import memory
from trainers.exchange.aggregate import Aggregator, Gather, Report, Unread, read
from trainers.exchange.connection import Connection
from trainers.exchange.dense import all_reduce_bucket
from trainers.exchange.gradients import Gradients
from trainers.exchange.level import Level
from trainers.exchange.selector import Selector
from trainers.exchange.step_result import DIVERGED, Exchanged, all_finite
from trainers.exchange.sum_by_owner import Sharded, owned
from trainers.snapshot import Kept
from trainers.spec.sparse import SparseConfig
from trainers.traffic import collectives
from trainers.traffic.buckets import Bucket


class SparseExchange:
    """An exchange that sends some entries of each bucket, or all of them densely if that takes fewer bytes.

    `aggregator` makes the aggregator of a bucket. By default payloads go to all ranks or to owners, as
    `config.aggregate` says.
    """

    def __init__(
        self,
        config: SparseConfig,
        selector: Selector,
        buffer: Gradients,
        connection: Connection,
        *,
        aggregator: Callable[[Bucket], Aggregator] | None = None,
    ) -> None:
        self._config, self._selector = config, selector
        self._buffer, self._connection = buffer, connection
        self._memory = memory.build(config, buffer.gradient)
        device = buffer.gradient.device
        self._aggregators = [
            aggregator(bucket) if aggregator else _fewest_bytes(config, bucket, connection, device)
            for bucket in buffer.buckets
        ]
        self._rate = memory.FollowedRate()

    @property
    def threshold(self) -> float | None:
        return self._selector.threshold

    @torch.no_grad()
    def step(self, loss: Tensor, level: Level, learning_rate: float) -> Exchanged:
        """Exchange the buffer's gradient, bucket by bucket. The memory changes only if the whole gradient is finite."""
        if self._config.lr_corrected:
            factor = self._rate.correction(learning_rate)
            self._memory.rescale(factor)
            for aggregator in self._aggregators:
                aggregator.rescale(factor)
        if not self._selector.prepare(level, self._buffer, self._memory, self._connection):
            return DIVERGED
        reports = read([self._exchange(bucket, loss.float()) for bucket in self._buffer.buckets])
        if not all(report.is_finite for report in reports):
            return DIVERGED
        if self._config.lr_corrected and not self._rate.counts(learning_rate):
            self._memory.skip()
        else:
            self._commit(learning_rate)
        self._selector.observe(reports)
        return Exchanged(
            loss=reports[-1].loss,
            density=sum(report.sent for report in reports) / self._buffer.num_elements,
        )

    def _commit(self, learning_rate: float) -> None:
        """Make the state that the step wrote the current one."""
        self._memory.commit()
        self._rate.commit(learning_rate)
        for aggregator in self._aggregators:
            aggregator.commit()

    def _exchange(self, bucket: Bucket, loss: Tensor) -> Unread:
        gradient, aggregator = self._buffer.wait(bucket), self._aggregators[bucket.index]
        capacity, d = self._selector.capacity(bucket), len(gradient)
        dense_bytes = collectives.dense_instead(d, self._connection.num_workers).bytes
        if self._selector.sends_all:
            control = [loss] if bucket.start == 0 else []  # as a dense exchange does, bit for bit
            report = self._dense(bucket, control)
        elif capacity == d or aggregator.num_bytes(capacity) > dense_bytes:
            report = self._dense(bucket, [loss, *self._selector.count(bucket, gradient, self._memory)])
        else:
            selection = self._selector.select(bucket, gradient, self._memory, capacity)
            report = aggregator.reduce(selection, capacity, loss=loss, memory=self._memory, out=gradient)
        self._memory.receive(gradient, bucket.span)
        return report

    def _dense(self, bucket: Bucket, control: Sequence[Tensor]) -> Unread:
        """Average the whole bucket. `control` goes along: the loss, the count this rank wanted, and its note."""
        gradient = self._buffer.gradient[bucket.span]
        self._memory.take_all(gradient, bucket.span)
        self._aggregators[bucket.index].release(gradient)
        told = torch.stack([each.float() for each in control]) if control else gradient.new_empty(0)
        sums = all_reduce_bucket(self._buffer, bucket, self._connection, told)
        words = torch.cat([all_finite(gradient).float().reshape(1), sums]).view(torch.int32)
        return Unread(words, partial(self._read, float(len(gradient))))

    def _read(self, d: float, words: Tensor) -> Report:
        """Return the report of a bucket of `d` entries that was averaged densely."""
        numbers: list[float] = words.view(torch.float32).tolist()
        means = [each / self._connection.num_workers for each in numbers[1:]]
        is_finite = bool(numbers[0]) and all(map(math.isfinite, means))
        if len(means) == 3:
            loss, wanted, note = means
        else:  # the level asks for everything: only the bucket that starts at entry 0 has the loss
            loss, wanted, note = means[0] if means else math.nan, d, 0.0
        return Report(loss, is_finite, most_wanted=wanted, sent=d, note=note)

    def release(self, values: Tensor) -> None:
        """Add the residual to `values` `(d,)`, and reset it to zero. For plain residuals only."""
        residual = self._memory.tensors()["residual"]
        values += residual
        residual.zero_()
        for bucket, aggregator in zip(self._buffer.buckets, self._aggregators, strict=True):
            aggregator.release(values[bucket.span])
            aggregator.commit()

    def tensors(self) -> dict[str, Tensor]:
        kept = {
            f"aggregate.{index}.{name}": tensor
            for index, aggregator in enumerate(self._aggregators)
            for name, tensor in aggregator.tensors().items()
        }
        return self._memory.tensors() | kept

    def scalars(self) -> dict[str, Any]:
        return {
            "selector": self._selector.scalars(),
            "aggregators": [aggregator.scalars() for aggregator in self._aggregators],
            "learning_rate": self._rate.last,
        }

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._selector.load_scalars(scalars["selector"])
        for aggregator, each in zip(self._aggregators, scalars["aggregators"], strict=True):
            aggregator.load_scalars(each)
        self._rate.load(scalars["learning_rate"])

    def inherit(self, kept: Kept) -> None:
        self._memory.inherit(kept)
        for bucket in self._buffer.buckets:
            self._memory.add_owned(owned(kept, bucket), bucket.span)
        if kept.index == 0:  # ranks decide alike, so the first one's will do for all
            self._selector.load_scalars(kept.scalars["selector"])
            self._rate.load(kept.scalars["learning_rate"])


def _fewest_bytes(config: SparseConfig, bucket: Bucket, connection: Connection, device: torch.device) -> Aggregator:
    """Return the aggregator that `config` asks for. `auto` sends fewer bytes; the level does not affect the choice."""
    if config.is_sharded(connection.num_workers):
        return Sharded(config, bucket, connection, device)
    return Gather(config, bucket, connection)
