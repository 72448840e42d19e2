"""Local updates whose ranks start every round from one place, the anchor, and send how far they have gone from it.

The difference is what is sent, so that it can be compressed with error feedback.
"""

from abc import abstractmethod

from torch import Tensor

from trainers.exchange.exchange import Exchange
from trainers.exchange.step_result import Exchanged
from trainers.methods.sync.averaging import Iterate, Meeting
from trainers.methods.sync.local import Local
from trainers.methods.sync.policy import Update
from trainers.spec.sync import CompressedUpdatesConfig


class Anchored(Local):
    """Keeps the anchor, equal on all ranks; subclasses say where it goes from what the ranks did."""

    def __init__(
        self, config: CompressedUpdatesConfig, iterate: Iterate, meeting: Meeting, *, gradients: Exchange
    ) -> None:
        super().__init__(config, iterate, gradients=gradients, exchange=meeting.exchange)
        self._meeting, self._anchor = meeting, iterate.read()

    def _meet(self, outcome: Exchanged, update: Update) -> Exchanged:
        moved = self._anchor - self._iterate.read()
        mean, met = self._meeting.average(moved, outcome, update)
        if not met.diverged:
            self._anchor -= self._outer_step(mean, update.learning_rate)
            self._iterate.write(self._anchor)
        return met

    @abstractmethod
    def _outer_step(self, mean: Tensor, learning_rate: float) -> Tensor:
        """Return what the anchor loses where the ranks' iterates have lost `mean`; all ranks return the same bits.

        `learning_rate` is that of the round's last step.
        """

    def tensors(self) -> dict[str, Tensor]:
        return {"anchor": self._anchor}
