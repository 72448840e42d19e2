"""Local SGD: average the parameters every k steps.

Stich (2019), "Local SGD converges fast and communicates little", Algorithm 1; slow momentum is that of Wang, Tantia,
Ballas and Rabbat (2020), "SlowMo: improving communication-efficient distributed SGD with slow momentum", Algorithm 1,
with a slow learning rate of 1. The difference to the last average is sent, so that it can be compressed with error
feedback.
"""

import torch
from torch import Tensor

from trainers.exchange.exchange import Exchange
from trainers.exchange.step_result import Exchanged
from trainers.methods.sync.averaging import Iterate, Meeting
from trainers.methods.sync.local import Local
from trainers.methods.sync.local_sgd.spec import LocalSgdConfig
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import Update
from trainers.methods.sync.stl_sgd.spec import StlSgdConfig


class LocalSgd(Local):
    """Keeps the last average, the anchor, equal on all ranks, and with slow momentum a velocity in gradient units."""

    def __init__(
        self, config: LocalSgdConfig | StlSgdConfig, iterate: Iterate, meeting: Meeting, *, gradients: Exchange
    ) -> None:
        super().__init__(config, iterate, gradients=gradients, exchange=meeting.exchange)
        self._slow_momentum = config.slow_momentum if isinstance(config, LocalSgdConfig) else 0.0
        self._meeting, self._anchor = meeting, iterate.read()
        self._velocity = torch.zeros_like(self._anchor) if self._slow_momentum else self._anchor.new_zeros(0)

    def begin(self) -> None:
        """Begin a round where the ranks, which are all at one place, are now."""
        self._since, self._path = 0, 0.0
        self._anchor.copy_(self._iterate.read())

    def _meet(self, outcome: Exchanged, update: Update) -> Exchanged:
        moved = self._anchor - self._iterate.read()
        mean, met = self._meeting.average(moved, outcome, update)
        if not met.diverged:
            self._anchor -= self._sped_up(mean, update.learning_rate)
            self._iterate.write(self._anchor)
        return met

    def _sped_up(self, mean: Tensor, learning_rate: float) -> Tensor:
        """Return how far the anchor goes where the ranks have gone by `mean`; a rate of 0 has no velocity."""
        if not self._slow_momentum or not learning_rate:
            return mean
        self._velocity.mul_(self._slow_momentum).add_(mean, alpha=1 / learning_rate)
        return learning_rate * self._velocity

    def tensors(self) -> dict[str, Tensor]:
        return {"anchor": self._anchor, "velocity": self._velocity}


def build(config: LocalSgdConfig, parts: PolicyParts) -> LocalSgd:
    """Return the policy from where the parameters are now."""
    return LocalSgd(config, parts.iterate, parts.meeting(), gradients=parts.alone())
