"""Measurements over a series of segments: a probe, or an open commit."""

from collections.abc import Mapping, Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from search.budget import spending
from search.config import Budget
from search.trace import Trace
from search.types import Decision, Observation, Spent
from trainers.segment import Purpose, SegmentResult


class Measured(BaseModel):
    """Consecutive segments as one series: a probe, or a commit so far. The series keep only the last `limit` steps."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    limit: int | None = None
    num_steps: int = 0
    losses: list[float] = Field(default_factory=list)
    step_seconds: list[float] = Field(default_factory=list)
    trace: Trace = Field(default_factory=Trace, description="of all steps, whatever the limit")
    bytes_sent: int = 0
    density_sum: float | None = None
    density_steps: int = Field(0, description="steps with a known density: between two averages nothing is sent")
    threshold: float | None = None
    steps_to_meeting: int = 0
    diverged: bool = False

    @model_validator(mode="after")
    def _knows_density_steps(self) -> Self:
        if self.density_sum is not None and not self.density_steps:  # an earlier release has not said
            self.density_steps = self.num_steps
        return self

    def add(self, result: SegmentResult) -> None:
        """Append a segment."""
        self.num_steps += len(result.losses)
        self.losses = [*self.losses, *result.losses][-(self.limit or 0) :]
        self.step_seconds = [*self.step_seconds, *result.step_seconds][-(self.limit or 0) :]
        self.trace = self.trace.extended(
            result.losses, result.step_seconds, result.gradient_scales, result.alignments, result.waits
        )
        self.bytes_sent += bytes_per_worker(result.bytes_sent)
        self.threshold, self.steps_to_meeting = result.threshold, result.steps_to_meeting
        self.diverged = self.diverged or result.diverged
        if result.density is not None:
            self.density_sum = (self.density_sum or 0.0) + result.density * len(result.losses)
            self.density_steps += len(result.losses)

    @property
    def density(self) -> float | None:
        """The mean density of what was sent; None for a dense exchange."""
        return None if self.density_sum is None else self.density_sum / max(1, self.density_steps)

    def observation(self, candidate_id: str | None, spent: Spent, *, is_cut: bool = False) -> Observation:
        """Return the observation for the strategy: `candidate_id` is None for a commit, `spent` the run's totals."""
        return Observation(
            candidate_id=candidate_id,
            losses=tuple(self.losses),
            step_seconds=tuple(self.step_seconds),
            trace=self.trace,
            bytes_sent=self.bytes_sent,
            density=self.density,
            steps_to_meeting=self.steps_to_meeting,
            diverged=self.diverged,
            is_cut=is_cut,
            spent=spent,
        )


#: The number of losses kept of a commit. It can be long, and strategies read only its end.
COMMIT_LOSSES = 200


class OpenCommit(BaseModel):
    """A commit in progress."""

    decision: Decision
    measured: Measured = Field(default_factory=lambda: Measured(limit=COMMIT_LOSSES))
    looked: int = Field(0, description="its steps when the strategy last looked at it")

    def stretched(self, before: Budget, budget: Budget) -> "OpenCommit":
        """Return the commit under the larger `budget`: a cap that was the old budget's becomes the new one's."""
        moved = spending.stretched(self.decision.commit_until, before, budget)
        return self.model_copy(update={"decision": self.decision.model_copy(update={"commit_until": moved})})


def bytes_per_worker(bytes_sent: Sequence[Mapping[Purpose, int]]) -> int:
    """Return the bytes that the busiest rank sent, over all purposes."""
    return max((sum(rank.values()) for rank in bytes_sent), default=0)
