"""Steps that were trained in a row, measured together: a probe, or a commit so far."""

import math
from collections.abc import Sequence
from itertools import takewhile
from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from search.budget.link import StepCost
from search.trace import Trace
from search.types import Observation, Spent

#: Losses of a commit that are kept: its end is all that a strategy reads, and a commit can be long.
COMMIT_LOSSES = 200


class Series(BaseModel):
    """Mutable: consecutive steps as one series. The lists end with the last `limit` steps. JSON both ways."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    limit: int | None = None
    num_steps: int = 0
    losses: list[float] = Field(default_factory=list)
    step_seconds: list[float] = Field(default_factory=list)
    trace: Trace = Field(default_factory=Trace, description="of all steps, whatever the limit")
    bytes_sent: int = 0
    steps_to_meeting: int = 0
    diverged: bool = False

    def extend(
        self,
        losses: Sequence[float],
        *,
        step_seconds: Sequence[float] = (),
        gradient_scales: Sequence[float] = (),
        alignments: Sequence[float] = (),
        waits: Sequence[float] = (),
        bytes_sent: int = 0,
        steps_to_meeting: int = 0,
        diverged: bool = False,
    ) -> None:
        """Append steps, up to the first whose loss is not finite: the series has diverged there.

        Each argument that is a sequence has an entry per step, or is empty. `bytes_sent` are those of one worker in
        all the steps. `steps_to_meeting` is as in an observation, after the last of them.
        """
        num_finite = sum(1 for _ in takewhile(math.isfinite, losses))
        is_cut = num_finite < len(losses)
        kept = [each[:num_finite] for each in (losses, step_seconds, gradient_scales, alignments, waits)]
        self.num_steps += num_finite
        self.losses = [*self.losses, *kept[0]][-(self.limit or 0) :]
        self.step_seconds = [*self.step_seconds, *kept[1]][-(self.limit or 0) :]
        self.trace = self.trace.extended(*kept)
        self.bytes_sent += round(bytes_sent * num_finite / len(losses)) if is_cut else bytes_sent
        self.steps_to_meeting = steps_to_meeting
        self.diverged = self.diverged or diverged or is_cut

    @property
    def cost(self) -> StepCost | None:
        """The mean cost of a step; None before the first. Seconds leave out that one, which may compile."""
        if not self.num_steps:
            return None
        timed = self.step_seconds[1:] or self.step_seconds or [0.0]
        return StepCost(bytes=self.bytes_sent / self.num_steps, seconds=sum(timed) / len(timed))

    def as_commit(self) -> Self:
        """Return the steps of a promoted probe as a commit's first ones.

        Their alignments are left out: they are those of a rate that fell to 0.
        """
        update = {
            "limit": COMMIT_LOSSES,
            "losses": self.losses[-COMMIT_LOSSES:],
            "step_seconds": self.step_seconds[-COMMIT_LOSSES:],
            "trace": self.trace.model_copy(update={"aligned": 0.0}),
        }
        return self.model_copy(update=update)

    def observation(self, candidate_id: str | None, spent: Spent, **ended: bool) -> Observation:
        """Return the observation that the strategy gets; `spent` are the run's totals, `ended` says how it ended.

        `candidate_id` is None for a commit.
        """
        seen = Observation(
            candidate_id=candidate_id,
            losses=tuple(self.losses),
            step_seconds=tuple(self.step_seconds),
            trace=self.trace,
            bytes_sent=self.bytes_sent,
            steps_to_meeting=self.steps_to_meeting,
            diverged=self.diverged,
            spent=spent,
        )
        return seen.model_copy(update=ended)
