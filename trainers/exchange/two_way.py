"""The base of exchanges that compress both ways: a memory, and signs to owners of entries and back."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from trainers.exchange import server
from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.connection import Connection
from trainers.exchange.memory import FollowedRate, Memory
from trainers.exchange.server import Server
from trainers.exchange.step_result import Exchanged, agreed, all_finite, loss_if
from trainers.snapshot import Kept
from trainers.spec.two_way import TwoWayConfig
from trainers.traffic.buckets import Bucket


class SignExchange(ABC):
    """A memory, and steps bucket by bucket that count only if all of them were finite."""

    threshold = None

    def __init__(self, config: TwoWayConfig, memory: Memory, buffer: GradientBuffer, connection: Connection) -> None:
        self._follows_rate, self._memory, self._buffer, self._connection = (
            config.follows_rate,
            memory,
            buffer,
            connection,
        )
        self._rate = FollowedRate()
        self._taken = 0  # steps

    @torch.no_grad()
    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        """Exchange the buffer's gradient, bucket by bucket; the memory changes only if all of it was finite."""
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
        """Replace the bucket's gradient; returns the ranks' losses `(N,)`, NaN if anything sent was not finite."""

    def _meets(self, period: int) -> bool:
        """Return whether the coming step is the last one of a `period`."""
        return (self._taken + 1) % period == 0

    def _commit(self, learning_rate: float) -> None:
        self._memory.commit()
        self._rate.commit(learning_rate)
        self._taken += 1

    def tensors(self) -> dict[str, Tensor]:
        return self._memory.tensors()

    def scalars(self) -> dict[str, Any]:
        return {"learning_rate": self._rate.last, "taken": self._taken}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._rate.load(scalars["learning_rate"])
        self._taken = scalars["taken"]

    def inherit(self, kept: Kept) -> None:
        self._memory.inherit(kept)
        self.load_scalars(dict(kept.scalars))  # all ranks had the same


class TwoWayExchange(SignExchange):
    """A server for each bucket; the memory says what becomes of what does not reach it."""

    def __init__(self, config: TwoWayConfig, memory: Memory, buffer: GradientBuffer, connection: Connection) -> None:
        super().__init__(config, memory, buffer, connection)
        self._config = config
        self._servers = [Server(config, bucket, connection, buffer.gradient.device) for bucket in buffer.buckets]

    def _rescale(self, factor: float) -> None:
        super()._rescale(factor)
        for each in self._servers:
            each.rescale(factor)

    def _exchange(self, bucket: Bucket, loss: Tensor) -> Tensor:
        gradient, of_bucket = self._buffer.wait(bucket), self._servers[bucket.index]
        rows = of_bucket.encode(self._memory.corrected(gradient, bucket.span), loss)
        losses = of_bucket.average(rows, gradient)
        finite = all_finite(gradient)  # its bits are the same on all ranks; those of what a memory adds are not
        self._memory.receive(gradient, bucket.span)
        return loss_if(finite, losses)

    def _commit(self, learning_rate: float) -> None:
        super()._commit(learning_rate)
        for each in self._servers:
            each.commit()

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {server.name_of(index): each.error for index, each in enumerate(self._servers)}

    def inherit(self, kept: Kept) -> None:
        super().inherit(kept)
        for bucket in self._buffer.buckets:
            self._memory.add_owned(server.kept_for_all(kept, bucket, self._config), bucket.span)
