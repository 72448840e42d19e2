"""Base of exchanges with a memory that send every bucket as codes, one way or both ways."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.memory import FollowedRate, Memory
from trainers.exchange.step_result import Exchanged, agreed
from trainers.snapshot import Kept
from trainers.traffic.buckets import Bucket


class BucketwiseExchange(ABC):
    """An exchange with a memory that works bucket by bucket. A step counts only if all buckets were finite.

    `follows_rate`: when the learning rate changes, the memory is rescaled to keep rate x memory constant.
    """

    threshold = None

    def __init__(self, memory: Memory, buffer: Gradients, connection: Connection, *, follows_rate: bool) -> None:
        self._memory, self._buffer, self._connection = memory, buffer, connection
        self._follows_rate, self._rate = follows_rate, FollowedRate()
        self._taken = 0  # steps

    @torch.no_grad()
    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        """Exchange the buffer's gradient, bucket by bucket. The memory changes only if the whole gradient is finite."""
        self._follow(learning_rate)
        outcome = agreed(
            [self._exchange(bucket, loss) for bucket in self._buffer.buckets], self._connection.num_workers
        )
        if not outcome.diverged:
            self._commit(learning_rate)
        return outcome

    def _follow(self, learning_rate: float) -> None:
        if self._follows_rate:
            self._rescale(self._rate.correction(learning_rate))

    def _rescale(self, factor: float) -> None:
        self._memory.rescale(factor)

    @abstractmethod
    def _exchange(self, bucket: Bucket, loss: Tensor) -> Tensor:
        """Replace the bucket's gradient. Returns the ranks' losses `(N,)`, NaN if anything sent was not finite."""

    def _meets(self, period: int) -> bool:
        """Return whether the coming step is the last one of a `period`."""
        return (self._taken + 1) % period == 0

    def _commit(self, learning_rate: float) -> None:
        if self._follows_rate and not self._rate.counts(learning_rate):
            self._memory.skip()
        else:
            self._keep()
            self._rate.commit(learning_rate)
        self._taken += 1

    def _keep(self) -> None:
        """Make the state that the step wrote the current one."""
        self._memory.commit()

    def release(self, values: Tensor) -> None:
        """Add the residual to `values` `(d,)`, and reset it to zero. For plain residuals only."""
        residual = self._memory.tensors()["residual"]
        values += residual
        residual.zero_()

    def tensors(self) -> dict[str, Tensor]:
        return self._memory.tensors()

    def scalars(self) -> dict[str, Any]:
        return {"learning_rate": self._rate.last, "taken": self._taken}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._rate.load(scalars.get("learning_rate"))  # which was not always saved
        self._taken = scalars["taken"]

    def inherit(self, kept: Kept) -> None:
        self._memory.inherit(kept)
        self.load_scalars(dict(kept.scalars))  # all ranks had the same
