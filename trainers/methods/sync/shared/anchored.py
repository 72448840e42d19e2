"""Local updates from an anchor: ranks start every round from it, and send how far they have moved away.

Ranks send differences, since these can be compressed with error feedback.
"""

from abc import abstractmethod
from dataclasses import replace
from typing import Any

from torch import Tensor

from trainers.exchange.step_result import Exchanged
from trainers.methods.sync.parts import PolicyParts
from trainers.methods.sync.policy import Update
from trainers.methods.sync.shared import screen
from trainers.methods.sync.shared.averaging import Meeting
from trainers.methods.sync.shared.local import Local
from trainers.methods.sync.shared.screen import weighted
from trainers.spec.ranges import first
from trainers.spec.sync import CompressedUpdatesConfig


class Anchored(Local):
    """Keeps the anchor, which is equal on all ranks. Subclasses decide how a round's mean progress moves it.

    Ranks average in the `meeting`; None: by the job's exchange.
    """

    def __init__(self, config: CompressedUpdatesConfig, parts: PolicyParts, *, meeting: Meeting | None = None) -> None:
        self._meeting = parts.meeting() if meeting is None else meeting
        super().__init__(first(config.period), parts.iterate, gradients=parts.alone(), exchange=self._meeting.exchange)
        self._anchor = parts.iterate.read().cpu() if config.offload else parts.iterate.read()
        self._screen = screen.build(config, parts.node_links)

    def _meet(self, outcome: Exchanged, update: Update) -> Exchanged:
        here = self._iterate.read()
        moved = self._anchor.to(here.device) - here
        weight = self._screen.weight(moved, outcome.loss, self._path)
        if weight is None:
            self._iterate.write(self._anchor)
            return replace(outcome, is_left_out=True)
        mean, met = self._meeting.average(*weighted(moved, outcome, weight), update)
        if not met.diverged:
            self._anchor -= self._outer_step(mean.to(self._anchor.device), update)
            self._iterate.write(self._anchor)
        return replace(met, is_left_out=not weight)

    @abstractmethod
    def _outer_step(self, mean: Tensor, update: Update) -> Tensor:
        """Return the vector to subtract from the anchor, with the same bits on all ranks.

        `mean` is the ranks' mean of what their steps have subtracted. `update` is the last one of the round.
        """

    def tensors(self) -> dict[str, Tensor]:
        return {"anchor": self._anchor}

    def scalars(self) -> dict[str, Any]:
        return super().scalars() | {"screen": self._screen.scalars()}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        super().load_scalars(scalars)
        self._screen.load_scalars(scalars.get("screen", {}))  # which was not always saved
