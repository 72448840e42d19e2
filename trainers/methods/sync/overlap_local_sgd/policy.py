"""Overlap-Local-SGD: ranks are pulled to an anchor, which is averaged while they take the next round's steps.

Wang, Liang and Joshi (2020), "Overlap Local-SGD: an algorithmic approach to hide communication delays in distributed
SGD", section 3, with the momentum of the authors' code. Its rate is here the mean of those of the round's steps.
"""

import torch
from torch import Tensor

from trainers.methods.sync.overlap_local_sgd.spec import OverlapLocalSgdConfig
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import Update
from trainers.methods.sync.shared.delayed_average import DelayedAverage


class OverlapLocalSgd(DelayedAverage):
    """Keeps this rank's velocity of the anchor, in gradient units; the anchor is what is averaged."""

    def __init__(self, config: OverlapLocalSgdConfig, parts: PolicyParts) -> None:
        super().__init__(config, parts)
        self._pull, self._momentum = config.pull, config.momentum
        self._velocity = torch.zeros_like(parts.iterate.read())

    def _take(self, average: Tensor, update: Update) -> None:
        pulled = torch.lerp(self._iterate.read(), average, self._pull)
        self._iterate.write(pulled)
        if self._rate:
            self._velocity.mul_(self._momentum).add_(average - pulled, alpha=1 / self._rate)
            average.sub_(self._velocity, alpha=self._rate)
        else:  # there is no velocity at a rate of 0
            average.copy_(pulled)

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"velocity": self._velocity}
