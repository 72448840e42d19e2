"""The outer optimizer of DiLoCo, whose gradient is how far the ranks went on average: SGD with momentum.

Reddi et al. (2021), "Adaptive federated optimization", Algorithm 1, with SGD as its server's optimizer.
"""

import torch
from torch import Tensor

from trainers.methods.sync.diloco.spec import OuterConfig
from trainers.methods.sync.policy import Update
from trainers.spec.ranges import first


class OuterSgd:
    """Keeps, with momentum, a velocity in units of parameters, of vectors like the `anchor` `(n,)`."""

    def __init__(self, config: OuterConfig, anchor: Tensor) -> None:
        self._config = config
        self.velocity = torch.zeros_like(anchor) if first(config.outer_momentum) else anchor.new_zeros(0)

    def step(self, mean: Tensor, update: Update) -> Tensor:
        """Return what the anchor loses where the ranks lost D, their `mean` `(n,)`; the inner rate is in D already.

        v <- mu v + D, and then eta (D + mu v), or eta v without Nesterov. eta and mu are those of the `update`, where
        they are searched.
        """
        eta, mu = update.outer_learning_rate, update.outer_momentum
        eta = first(self._config.outer_learning_rate) if eta is None else eta
        mu = first(self._config.outer_momentum) if mu is None else mu
        if not mu:
            if len(self.velocity):
                self.velocity.copy_(mean)  # not times 0, which leaves what is not finite
            return eta * mean
        self.velocity.mul_(mu).add_(mean)
        if self._config.nesterov:
            return eta * mean.add(self.velocity, alpha=mu)
        return eta * self.velocity
