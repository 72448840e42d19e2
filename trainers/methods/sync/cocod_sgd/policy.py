"""CoCoD-SGD: parameters are averaged while the ranks take the next round's steps.

Shen, Xu, Liu, Liang and Cheng (2019), "Faster distributed deep net training: computation and communication decoupled
stochastic gradient descent", Algorithm 1. The first round begins from a common start, whose average is not sent for.
"""

from torch import Tensor

from trainers.exchange.exchange import Exchange
from trainers.methods.sync.cocod_sgd.spec import CocodSgdConfig
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import Update
from trainers.methods.sync.shared.averaging import Iterate
from trainers.methods.sync.shared.delayed_average import Background, DelayedAverage


class CocodSgd(DelayedAverage):
    """Keeps where this rank's round began; the average of these is under way meanwhile."""

    def __init__(
        self, config: CocodSgdConfig, iterate: Iterate, background: Background, *, gradients: Exchange
    ) -> None:
        super().__init__(config, iterate, background, gradients=gradients)
        self._begun = iterate.read()

    def _take(self, average: Tensor, update: Update) -> None:
        progress = self._iterate.read() - self._begun
        now = average + progress
        self._iterate.write(now)
        self._begun.copy_(now)
        average.copy_(now)

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"begun": self._begun}


def build(config: CocodSgdConfig, parts: PolicyParts) -> CocodSgd:
    """Return the policy from where the parameters are now."""
    return CocodSgd(config, parts.iterate, parts.background(), gradients=parts.alone())
