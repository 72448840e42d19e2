"""Average a vector over the ranks while they take the next round's steps."""

from abc import abstractmethod

from torch import Tensor

from trainers.exchange.step_result import DIVERGED, Exchanged, is_finite
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import Update
from trainers.methods.sync.shared.local import Local
from trainers.spec.ranges import first
from trainers.spec.sync import DelayedAverageConfig


class DelayedAverage(Local):
    """Base of policies that average a vector in the background. Before the first round it is the common start.

    When the average has arrived, its bits are equal on all ranks, so all agree on whether it is finite.
    """

    agrees = False

    def __init__(self, config: DelayedAverageConfig, parts: PolicyParts) -> None:
        alone = parts.alone()
        super().__init__(first(config.period), parts.iterate, gradients=alone, exchange=alone)
        self._background, self._average = parts.background(), parts.iterate.read()

    def _meet(self, outcome: Exchanged, update: Update) -> Exchanged:
        self._background.wait()
        if not is_finite(self._average):
            return DIVERGED
        self._take(self._average, update)
        self._background.launch(self._average)
        return outcome

    @abstractmethod
    def _take(self, average: Tensor, update: Update) -> None:
        """Use the `average` that has arrived, then overwrite it with the vector to average next."""

    def settle(self) -> None:
        self._background.wait()

    def tensors(self) -> dict[str, Tensor]:
        self._background.wait()  # nobody may read or write the state while an average is under way
        return {"average": self._average}
