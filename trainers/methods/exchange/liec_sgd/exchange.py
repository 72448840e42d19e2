"""LIEC-SGD: signs both ways, errors applied at once, dense averages now and then.

Cheng et al. (2024), "Communication-efficient distributed learning with local immediate error compensation". Its server
error follows the learning rate here.
"""

import torch
from torch import Tensor

from trainers.exchange.connection import Connection
from trainers.exchange.dense import DenseExchange
from trainers.exchange.gradients import Gradients
from trainers.exchange.memory import Nothing
from trainers.exchange.step_result import Exchanged
from trainers.exchange.two_way import TwoWayExchange
from trainers.methods.exchange.liec_sgd.spec import LiecSgdConfig


class Immediate(Nothing):
    """This rank applies by itself, at once, what it did not send (Cheng et al., 2024)."""

    def receive(self, mean: Tensor, span: slice) -> None:
        mean += self._corrected[span]


class LiecExchange(TwoWayExchange):
    """In the last step of a period the servers give what they keep, and the gradient is averaged densely."""

    def __init__(self, config: LiecSgdConfig, buffer: Gradients, connection: Connection) -> None:
        super().__init__(config, Immediate(buffer.gradient), buffer, connection)
        self._period, self._dense = config.period, DenseExchange(buffer, connection)

    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        if not self._meets(self._period):
            return super().step(loss, level, learning_rate)
        self._follow(learning_rate)
        self._release()
        outcome = self._dense.step(loss, level, learning_rate)
        if not outcome.diverged:
            self._commit(learning_rate)
        return outcome

    @torch.no_grad()
    def _release(self) -> None:
        for bucket, of_bucket in zip(self._buffer.buckets, self._servers, strict=True):
            of_bucket.release(self._buffer.wait(bucket))


def build(config: LiecSgdConfig, buffer: Gradients, connection: Connection, *, seed: int) -> LiecExchange:
    """Return the exchange of `config`."""
    return LiecExchange(config, buffer, connection)
