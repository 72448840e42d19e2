"""CoCoD-SGD: parameters are averaged while the ranks take the next round's steps.

Shen, Xu, Liu, Liang and Cheng (2019), "Faster distributed deep net training: computation and communication decoupled
stochastic gradient descent", Algorithm 1. The first round begins from a common start, whose average is not sent for.
"""

from torch import Tensor

from trainers.methods.sync.cocod_sgd.spec import CocodSgdConfig
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import Update
from trainers.methods.sync.shared.delayed_average import DelayedAverage


class CocodSgd(DelayedAverage):
    """Keeps where this rank's round began; the average of these is under way meanwhile."""

    def __init__(self, config: CocodSgdConfig, parts: PolicyParts) -> None:
        super().__init__(config, parts)
        self._begun = parts.iterate.read()

    def _take(self, average: Tensor, update: Update) -> None:
        progress = self._iterate.read() - self._begun
        now = average + progress
        self._iterate.write(now)
        self._begun.copy_(now)
        average.copy_(now)

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"begun": self._begun}
