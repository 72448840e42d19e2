"""DiLoCo: ranks train by any optimizer, and an outer optimizer takes for a gradient how far they went on average.

Douillard et al. (2023), "DiLoCo: distributed low-communication training of language models", Algorithm 1. The outer
step is that of Reddi et al. (2021), "Adaptive federated optimization", Algorithm 1, with SGD as its server's optimizer.
What the inner optimizer keeps, such as Adam's moments, stays each rank's own and goes on through the meetings.
"""

import torch
from torch import Tensor

from trainers.exchange.exchange import Exchange
from trainers.methods.sync.anchored import Anchored
from trainers.methods.sync.averaging import Iterate, Meeting
from trainers.methods.sync.diloco.spec import DiLoCoConfig
from trainers.methods.sync.parts import PolicyParts


class DiLoCo(Anchored):
    """Keeps the outer optimizer's parameters as its anchor, and with momentum its velocity in units of parameters."""

    def __init__(self, config: DiLoCoConfig, iterate: Iterate, meeting: Meeting, *, gradients: Exchange) -> None:
        super().__init__(config, iterate, meeting, gradients=gradients)
        self._rate, self._momentum = config.outer_learning_rate, config.outer_momentum
        self._nesterov = config.nesterov
        self._velocity = torch.zeros_like(self._anchor) if self._momentum else self._anchor.new_zeros(0)

    def _outer_step(self, mean: Tensor, learning_rate: float) -> Tensor:
        """Step by v <- mu v + D and eta (D + mu v), or eta v without Nesterov; the inner rate is in `mean` already."""
        if not self._momentum:
            return self._rate * mean
        self._velocity.mul_(self._momentum).add_(mean)
        if self._nesterov:
            return self._rate * mean.add(self._velocity, alpha=self._momentum)
        return self._rate * self._velocity

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"velocity": self._velocity}


def build(config: DiLoCoConfig, parts: PolicyParts) -> DiLoCo:
    """Return the policy from where the parameters are now."""
    return DiLoCo(config, parts.iterate, parts.meeting(), gradients=parts.alone())
