"""1-bit Adam: dense Adam for a while, then signs of momenta both ways over a frozen variance.

Tang, Gan, Awan, Rajbhandari, Li, Lian, Liu, Zhang and He (2021), "1-bit Adam: communication efficient large-scale
training with Adam's convergence speed", Algorithm 1. A worker sends b1 m + (1 - b1) g, where m is what all received in
the step before, with error feedback on both sides; what arrives is the next m. The frozen variance keeps the bias
correction of the step that it froze in, and the momentum goes on with its own, so that steps keep their length there.

Frozen, all of this is in units of sqrt(v) + eps, entry by entry: m is then Adam's direction, and g is divided first. As
published, signs of m itself are sent. Then a block's one magnitude is divided by roots that differ by orders of
magnitude, and training diverges where some inputs are rare.
"""

import math

import torch
from torch import Tensor

from trainers.exchange.adam import Moments
from trainers.exchange.connection import Connection
from trainers.exchange.dense import DenseExchange
from trainers.exchange.gradients import Gradients
from trainers.exchange.memory import Residual
from trainers.exchange.step_result import Exchanged, all_finite, loss_if
from trainers.exchange.two_way import TwoWayExchange
from trainers.methods.exchange.onebit_adam.spec import OneBitAdamConfig, SignsOfAdamConfig
from trainers.snapshot import Kept
from trainers.traffic.buckets import Bucket


class SignsOfAdam(TwoWayExchange):
    """Mutable too: Adam's moments, which are equal on all ranks.

    The second changes in dense steps alone. From a dense step to the next one the first is in units of its root.
    """

    def __init__(self, config: SignsOfAdamConfig, buffer: Gradients, connection: Connection) -> None:
        super().__init__(config, Residual(buffer.gradient), buffer, connection)
        self._adam, self._dense = config, DenseExchange(buffer, connection)
        self._moments = Moments(buffer.gradient, config.betas)

    @torch.no_grad()
    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        """Replace the buffer's gradient by the direction of Adam."""
        if self._adam.is_dense(self._taken):
            return self._dense_step(loss, level, learning_rate)
        outcome = super().step(loss, level, learning_rate)
        if not outcome.diverged:
            gradient = self._buffer.gradient
            gradient.mul_(self._moments.second > 0)  # codes are never 0
            self._moments.first.copy_(gradient)
            gradient /= self._bias()
        return outcome

    def _bias(self) -> float:
        """Return what the momentum of the steps taken is to be divided by."""
        return 1 - self._adam.betas[0] ** self._taken

    def _root(self, span: slice = slice(None)) -> Tensor:
        """Return the unit of each entry at `span`."""
        return self._moments.root(self._adam.num_dense(self._taken), span)

    def _dense_step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        """Step as Adam with the mean gradient, and change units with the variance, where signs come before or next."""
        outcome = self._dense.step(loss, level, learning_rate)
        if outcome.diverged:
            return outcome
        before = self._root() if self._taken and not self._adam.is_dense(self._taken - 1) else None
        if before is not None:
            self._moments.first *= before
        self._taken += 1
        self._moments.follow(self._buffer.gradient)
        self._moments.direction(self._buffer.gradient, self._taken, num_squares=self._adam.num_dense(self._taken))
        if not self._adam.is_dense(self._taken):
            after = self._root()
            self._moments.first /= after
            if before is not None:
                self._stretch(before / after)
        return outcome

    def _stretch(self, factors: Tensor) -> None:
        """Multiply what was not sent yet by `factors` `(d,)`."""
        self._memory.tensors()["residual"].mul_(factors)
        for bucket, of_bucket in zip(self._buffer.buckets, self._servers, strict=True):
            of_bucket.stretch(factors[bucket.span])

    def _exchange(self, bucket: Bucket, loss: Tensor) -> Tensor:
        _, finite = self._to_send(bucket)
        return super()._exchange(bucket, loss_if(finite, loss))

    def _to_send(self, bucket: Bucket) -> tuple[Tensor, Tensor]:
        """Turn the bucket's gradient into what is sent, in place; returns that, and whether the gradient was finite."""
        return self._momentum(bucket)

    def _momentum(self, bucket: Bucket) -> tuple[Tensor, Tensor]:
        """Turn the bucket's gradient into the momentum, in place; returns that, and whether the gradient was finite."""
        gradient, span = self._buffer.wait(bucket), bucket.span
        finite, (decay, decay_of_squares) = all_finite(gradient), self._adam.betas
        # A variance that is not frozen has the gradient in it, so that Adam's ratio is never longer than this.
        most = 1 / math.sqrt(1 - decay_of_squares)
        gradient.div_(self._root(span)).clamp_(-most, most)
        # What had no gradient before has no variance, and no scale.
        gradient *= self._moments.second[span] > 0
        return torch.lerp(self._moments.first[span], gradient, 1 - decay, out=gradient), finite

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | self._shared()

    def _shared(self) -> dict[str, Tensor]:
        """Return the state that is equal on all ranks."""
        return {"first": self._moments.first, "second": self._moments.second}

    def inherit(self, kept: Kept) -> None:
        super().inherit(kept)
        if kept.index == 0:
            for name, tensor in self._shared().items():
                tensor.copy_(kept.tensors[name])


def build(config: OneBitAdamConfig, buffer: Gradients, connection: Connection, *, seed: int) -> SignsOfAdam:
    """Return the exchange of `config`."""
    return SignsOfAdam(config, buffer, connection)
