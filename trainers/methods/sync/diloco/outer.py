"""The outer optimizer of DiLoCo, whose gradient is how far the ranks went on average: SGD with momentum.

Reddi et al. (2021), "Adaptive federated optimization", Algorithm 1, with SGD as its server's optimizer.
"""

import torch
from torch import Tensor

from trainers.methods.sync.diloco.spec import OuterConfig


class OuterSgd:
    """Keeps, with momentum, a velocity in units of parameters, of vectors like the `anchor` `(n,)`."""

    def __init__(self, config: OuterConfig, anchor: Tensor) -> None:
        self._rate, self._momentum = config.outer_learning_rate, config.outer_momentum
        self._nesterov = config.nesterov
        self.velocity = torch.zeros_like(anchor) if self._momentum else anchor.new_zeros(0)

    def step(self, mean: Tensor) -> Tensor:
        """Return what the anchor loses where the ranks lost D, their `mean` `(n,)`; the inner rate is in D already.

        v <- mu v + D, and then eta (D + mu v), or eta v without Nesterov.
        """
        if not self._momentum:
            return self._rate * mean
        self.velocity.mul_(self._momentum).add_(mean)
        if self._nesterov:
            return self._rate * mean.add(self.velocity, alpha=self._momentum)
        return self._rate * self.velocity
