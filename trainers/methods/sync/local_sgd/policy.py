"""Local SGD: average the parameters every k steps.

Stich (2019), "Local SGD converges fast and communicates little", Algorithm 1; slow momentum is that of Wang, Tantia,
Ballas and Rabbat (2020), "SlowMo: improving communication-efficient distributed SGD with slow momentum", Algorithm 1,
with a slow learning rate of 1. Its rate of a round is here the mean of those of the round's steps.
"""

import torch
from torch import Tensor

from trainers.methods.sync.local_sgd.spec import LocalSgdConfig
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import Update
from trainers.methods.sync.shared.anchored import Anchored
from trainers.methods.sync.shared.averaging import Meeting
from trainers.methods.sync.stl_sgd.spec import StlSgdConfig


class LocalSgd(Anchored):
    """Keeps the last average as its anchor, and with slow momentum a velocity in gradient units."""

    def __init__(
        self, config: LocalSgdConfig | StlSgdConfig, parts: PolicyParts, *, meeting: Meeting | None = None
    ) -> None:
        super().__init__(config, parts, meeting=meeting)
        self._slow_momentum = config.slow_momentum if isinstance(config, LocalSgdConfig) else 0.0
        self._velocity = torch.zeros_like(self._anchor) if self._slow_momentum else self._anchor.new_zeros(0)

    def begin(self) -> None:
        """Begin a round where the ranks, which are all at one place, are now."""
        self._since, self._path, self._rate = 0, 0.0, None
        self._anchor.copy_(self._iterate.read())

    def _outer_step(self, mean: Tensor, update: Update) -> Tensor:
        if not self._slow_momentum or not self._rate:  # a rate of 0 has no velocity
            return mean
        self._velocity.mul_(self._slow_momentum).add_(mean, alpha=1 / self._rate)
        return self._rate * self._velocity

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"velocity": self._velocity}
