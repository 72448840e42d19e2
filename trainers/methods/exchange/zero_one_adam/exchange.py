"""0/1 Adam: signs of momenta both ways, ever more rarely, over a variance that is refreshed as rarely.

Lu, Li, Zhang, De Sa and He (2023), "Maximizing communication efficiency for large-scale training via 0/1 Adam",
Algorithm 1. Its T_v are the dense steps of `SignsOfAdam`. Between the steps of T_u a rank steps by its own momentum;
the policy beside this has all ranks go on from one place in T_u. The paper sends u, the sum of rate x momentum since
the last exchange, and divides what arrives by the sum of the rates. Here u is divided before it is sent: what is sent
is the mean momentum. So errors are in units of momenta, and an exchange in every step is that of `SignsOfAdam`.
"""

from typing import Any

import torch
from torch import Tensor

from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.step_result import Exchanged
from trainers.methods.exchange.onebit_adam.exchange import SignsOfAdam
from trainers.methods.exchange.zero_one_adam.spec import ZeroOneAdamConfig
from trainers.traffic.buckets import Bucket


class LocalStepsOfAdam(SignsOfAdam):
    """Mutable too: the mean of this rank's momenta since the last exchange, weighted by the learning rates.

    Until the next exchange the first moment is this rank's own.
    """

    def __init__(self, config: ZeroOneAdamConfig, buffer: Gradients, connection: Connection) -> None:
        super().__init__(config, buffer, connection)
        self._intervals = config
        self._mean = torch.zeros_like(buffer.gradient)
        self._path = 0.0  # sum of the learning rates since the last exchange
        self._share = 1.0  # of the step's momentum in the mean

    @torch.no_grad()
    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        """Replace the buffer's gradient by the direction of Adam, all ranks' or, between exchanges, this one's."""
        path = self._path + learning_rate
        self._share = learning_rate / path if path else 1.0
        if self._intervals.steps_to_exchange(self._taken) > 1:
            self._path = path
            return self._local_step(loss)
        outcome = super().step(loss, level, learning_rate)
        if not outcome.diverged:
            self._mean.zero_()
            self._path = 0.0
        return outcome

    def _local_step(self, loss: Tensor) -> Exchanged:
        """Step by this rank's momentum. What is not finite is found in the next exchange, and stays so until then."""
        for bucket in self._buffer.buckets:
            momentum, finite = self._momentum(bucket)
            self._moments.first[bucket.span] = torch.where(finite, momentum, torch.nan)
        self._taken += 1
        self._mean.lerp_(self._moments.first, self._share)
        torch.div(self._moments.first, self._bias(), out=self._buffer.gradient)
        return Exchanged(loss=float(loss), is_of_node=True)

    def _to_send(self, bucket: Bucket) -> tuple[Tensor, Tensor]:
        momentum, finite = self._momentum(bucket)
        return torch.lerp(self._mean[bucket.span], momentum, self._share, out=momentum), finite

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"mean": self._mean}

    def scalars(self) -> dict[str, Any]:
        return super().scalars() | {"path": self._path}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        super().load_scalars(scalars)
        self._path = scalars["path"]


def build(config: ZeroOneAdamConfig, buffer: Gradients, connection: Connection, *, seed: int) -> SignsOfAdam:
    """Return the exchange of `config`."""
    return (LocalStepsOfAdam if config.drifts else SignsOfAdam)(config, buffer, connection)
