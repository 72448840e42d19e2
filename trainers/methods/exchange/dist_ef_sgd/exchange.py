"""dist-EF-SGD: signs to a server and back, errors that follow the learning rate, momentum of the workers.

Zheng, Huang and Kwok (2019), "Communication-efficient distributed blockwise momentum SGD with error-feedback",
Algorithms 1 and 2.
"""

import torch
from torch import Tensor

from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.memory import Residual, StatePair
from trainers.exchange.two_way import TwoWayExchange
from trainers.methods.exchange.dist_ef_sgd.spec import DistEfSgdConfig
from trainers.snapshot import Kept


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

    def skip(self) -> None:
        self._velocity.commit()  # which follows no rate

    def inherit(self, kept: Kept) -> None:
        super().inherit(kept)
        self._velocity.inherit(kept.tensors["momentum"], kept)

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"momentum": self._velocity.now}


def build(config: DistEfSgdConfig, buffer: Gradients, connection: Connection, *, seed: int) -> TwoWayExchange:
    """Return the exchange of `config`."""
    like = buffer.gradient
    memory = MomentumResidual(like, config.momentum) if config.momentum else Residual(like)
    return TwoWayExchange(config, memory, buffer, connection)
