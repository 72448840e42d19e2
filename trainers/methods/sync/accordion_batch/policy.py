"""Accordion on batches: larger ones, at a larger rate, once gradients no longer change fast (Agarwal et al., 2021)."""

from typing import Any

import torch
from torch import Tensor

from trainers.exchange.exchange import Exchange
from trainers.exchange.gradients import Gradients, Watched
from trainers.exchange.step_result import Exchanged
from trainers.methods.levels.regimes import Regimes
from trainers.methods.sync.accordion_batch.spec import AccordionBatchConfig
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import PolicyBase, StateParts, Update
from trainers.snapshot import Stateless
from trainers.traffic.buckets import Bucket


class Holding(Stateless):
    """Adds up the gradients of `batch` steps, and sends their mean through `exchange`.

    A loss that is not finite in a step that is held is found when all are exchanged: until then no rank may stop.
    """

    threshold = None

    def __init__(self, exchange: Exchange, buffer: Gradients) -> None:
        self._exchange, self._buffer = exchange, buffer
        self._sum, self._next_sum = torch.zeros_like(buffer.gradient), torch.zeros_like(buffer.gradient)
        self._count = 0  # steps whose gradients are in the sum
        self.batch = 1

    @property
    def is_due(self) -> bool:
        """True if the coming step is exchanged."""
        return self._count == self.batch - 1

    @torch.no_grad()
    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        if self.batch > 1:
            gradient = self._buffer.wait_for_all()
            torch.add(self._sum, gradient, out=self._next_sum)
            if not self.is_due:
                return Exchanged(loss=float(loss), is_held=True)
            torch.div(self._next_sum, self.batch, out=gradient)
        return self._exchange.step(loss, level, learning_rate)

    def commit(self) -> None:
        """End a step."""
        if self.batch == 1:  # the sum stays 0
            return
        self._sum, self._next_sum = self._next_sum, self._sum
        self._count = (self._count + 1) % self.batch
        if self._count == 0:
            self._sum.zero_()

    def tensors(self) -> dict[str, Tensor]:
        return {"held": self._sum}

    def scalars(self) -> dict[str, Any]:
        return {"count": self._count, "batch": self.batch}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._count, self.batch = scalars["count"], scalars["batch"]


class AccordionBatch(PolicyBase):
    """Small batches in critical regimes, and from the first other one on `factor` times as large ones.

    Their gradient is the mean of those of so many steps, on the same samples in the same order; only one of these steps
    is exchanged, and taken at a rate so many times as high. There is no way back, as in the authors' logs.
    """

    is_apart = False

    def __init__(self, config: AccordionBatchConfig, parts: PolicyParts) -> None:
        self._config, self._node_links = config, parts.node_links
        self._regimes = Regimes(config.lasting(parts.epoch_steps), [parts.buffer.layers], parts.buffer.gradient)
        watched = Watched(parts.gradients, self._watch)
        self.exchange = parts.exchange(watched)
        self._holding = Holding(self.exchange, watched)

    def _watch(self, bucket: Bucket, gradient: Tensor) -> None:
        if self._holding.batch == 1:  # nobody asks any more after that
            self._regimes.watch(bucket, gradient)

    @property
    def gradients(self) -> Exchange:
        return self._holding

    def learning_rate(self, learning_rate: float, step: int) -> float:
        return learning_rate * self._holding.batch if self._holding.is_due else learning_rate

    def advance(self, outcome: Exchanged, update: Update) -> Exchanged:
        self._holding.commit()
        if self._holding.batch == 1:
            self._regimes.commit(self._regimes.critical, self._node_links.tell)
            if not any(self._regimes.critical):
                self._holding.batch = self._config.factor
        return outcome

    def divide(self, trained: StateParts) -> tuple[StateParts, StateParts]:
        return trained, {"sync": self}

    def tensors(self) -> dict[str, Tensor]:
        return self._holding.tensors() | self._regimes.tensors()

    def scalars(self) -> dict[str, Any]:
        return {"holding": self._holding.scalars(), "regimes": self._regimes.scalars()}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._holding.load_scalars(scalars["holding"])
        self._regimes.load_scalars(scalars["regimes"])
