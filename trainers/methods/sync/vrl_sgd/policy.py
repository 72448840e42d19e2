"""VRL-SGD: local SGD whose ranks correct what their own data draw them to.

Liang, Shen, Liu, Pan, Chen and Cheng (2019), "Variance reduced local SGD with lower communication complexity",
Algorithm 1. Its k x rate is here the sum of the rates of the round's steps, which is the same where the rate is
constant; and what is corrected is the optimizer's update, whatever made it, as in the authors' code for momentum. Their
code averages momentum buffers too; ours stay each rank's own, so that at the optimum a rank's correction cancels its
update.
"""

import torch
from torch import Tensor

from trainers.exchange.step_result import Exchanged
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import Update
from trainers.methods.sync.shared.local import Local
from trainers.methods.sync.vrl_sgd.spec import VrlSgdConfig
from trainers.spec.ranges import first


class VrlSgd(Local):
    """Keeps how this rank's updates differ from the mean of the ranks', in their units: the paper's Delta.

    An update u moves the parameters by - rate x (u - Delta). Over the ranks Delta adds up to zero.
    """

    def __init__(self, config: VrlSgdConfig, parts: PolicyParts) -> None:
        self._meeting, self._drift = parts.meeting(), torch.zeros_like(parts.iterate.read())
        super().__init__(first(config.period), parts.iterate, gradients=parts.alone(), exchange=self._meeting.exchange)

    def advance(self, outcome: Exchanged, update: Update) -> Exchanged:
        self._iterate.add(self._drift, update.learning_rate)
        return super().advance(outcome, update)

    def _meet(self, outcome: Exchanged, update: Update) -> Exchanged:
        own = self._iterate.read()
        mean, met = self._meeting.average(own, outcome, update)
        if not met.diverged:
            if self._path:  # at a rate of 0 nobody has moved
                self._drift.add_(mean - own, alpha=1 / self._path)
            self._iterate.write(mean)
        return met

    def tensors(self) -> dict[str, Tensor]:
        return {"drift": self._drift}
