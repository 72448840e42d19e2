"""What becomes of what a worker's signs get wrong, where gradients are compressed both ways."""

import torch
from torch import Tensor

from trainers.exchange.config import DistEfSgdConfig, DoubleSqueezeConfig, TwoWayConfig
from trainers.exchange.memory import Memory, Nothing, Residual, StatePair
from trainers.training.snapshot import Kept


class MomentumResidual(Residual):
    """Error feedback of gradients with Nesterov's momentum, m: g + momentum x m, where m <- momentum x m + g.

    Zheng, Huang and Kwok (2019), Algorithm 2: the momentum is each worker's own, and no error goes into it.
    """

    def __init__(self, like: Tensor, momentum: float) -> None:
        super().__init__(like)
        self._velocity, self._momentum = StatePair(like), momentum

    def corrected(self, gradient: Tensor, span: slice) -> Tensor:
        velocity = torch.mul(self._velocity.now[span], self._momentum, out=self._velocity.next[span]).add_(gradient)
        return super().corrected(gradient, span).add_(velocity, alpha=self._momentum)

    def commit(self) -> None:
        super().commit()
        self._velocity.commit()

    def inherit(self, kept: Kept) -> None:
        super().inherit(kept)
        self._velocity.inherit(kept.tensors["momentum"], kept)

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"momentum": self._velocity.now}


class Immediate(Nothing):
    """This rank applies by itself, at once, what it did not send (Cheng et al., 2024)."""

    def receive(self, mean: Tensor, span: slice) -> None:
        mean += self._corrected[span]


def build(config: TwoWayConfig, like: Tensor) -> Memory:
    """Return the memory of `config`, for gradients like `like` `(d,)`."""
    match config:
        case DoubleSqueezeConfig() | DistEfSgdConfig(momentum=0.0):
            return Residual(like)
        case DistEfSgdConfig():
            return MomentumResidual(like, config.momentum)
        case _:
            return Immediate(like)
