"""Trained segments, and measurements over a series of them: a probe, or an open commit."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from pydantic import Field, model_validator

from search.budget import spending
from search.config import Budget
from search.loop.looks import WatchedCommit
from search.loop.series import COMMIT_LOSSES, Series
from search.types import Candidate, Decision, Observation, Spent
from trainers.segment import Purpose, Segment, SegmentResult


class Pushed(NamedTuple):
    """A trained segment and its result."""

    segment: Segment
    result: SegmentResult
    started_s: float  # on the training clock
    ended_s: float
    bytes_sent: int  # by one worker in the whole run, this segment included


class Measured(Series):
    """Consecutive segments as one series: a probe, or a commit so far. The lists keep only the last `limit` steps."""

    density_sum: float | None = None
    density_steps: int = Field(0, description="steps with a known density: between two averages nothing is sent")
    threshold: float | None = None

    @model_validator(mode="after")
    def _knows_density_steps(self) -> Self:
        if self.density_sum is not None and not self.density_steps:  # an earlier release has not said
            self.density_steps = self.num_steps
        return self

    def add(self, result: SegmentResult) -> None:
        """Append a segment."""
        self.extend(
            result.losses,
            step_seconds=result.step_seconds,
            gradient_scales=result.gradient_scales,
            alignments=result.alignments,
            waits=result.waits,
            bytes_sent=bytes_per_worker(result.bytes_sent),
            steps_to_meeting=result.steps_to_meeting,
            diverged=result.diverged,
        )
        self.threshold = result.threshold
        if result.density is not None:
            self.density_sum = (self.density_sum or 0.0) + result.density * len(result.losses)
            self.density_steps += len(result.losses)

    @property
    def density(self) -> float | None:
        """The mean density of what was sent; None for a dense exchange."""
        return None if self.density_sum is None else self.density_sum / max(1, self.density_steps)

    def observation(self, candidate_id: str | None, spent: Spent, **ended: bool) -> Observation:
        """Return the observation for the strategy: `candidate_id` is None for a commit, `spent` the run's totals."""
        seen = super().observation(candidate_id, spent, **ended)
        return seen.model_copy(update={"density": self.density})


class Probe(NamedTuple):
    """A candidate and its probe's measurements."""

    candidate: Candidate
    measured: Measured
    seconds: float
    pushed: Sequence[Pushed]
    is_cut: bool  # whether it ended before its allowance was spent


class OpenCommit(WatchedCommit):
    """A commit in progress."""

    decision: Decision
    measured: Measured = Field(default_factory=lambda: Measured(limit=COMMIT_LOSSES))

    def stretched(self, before: Budget, budget: Budget) -> "OpenCommit":
        """Return the commit under the larger `budget`, which may end later."""
        return self.model_copy(update={"decision": spending.stretched(self.decision, before, budget)})


def bytes_per_worker(bytes_sent: Sequence[Mapping[Purpose, int]]) -> int:
    """Return the bytes that the busiest rank sent, over all purposes."""
    return max((sum(rank.values()) for rank in bytes_sent), default=0)
