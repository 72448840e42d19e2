"""Summarise an observation to what decisions read, so that a journal stays small."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, Field

from search.curves.client_drift import first_steps
from search.curves.events import Event, Signs
from search.curves.forecast import LARGEST, median
from search.trace import Trace
from search.types import Observation, Spent, Value

Array = NDArray[np.float64]

#: Longer curves are kept as means of blocks: a forecast tells no more points apart.
MAX_POINTS = 400
#: The first losses of a run, which show where it starts: they are alike in all probes, up to the first updates.
OPENING_LOSSES = 5
#: The number of last losses whose median is the loss that a commit ended at.
MIN_END_LOSSES, MAX_END_LOSSES = 20, 200


class Reading(Value):
    """The summary of a finished probe that a controller keeps. A loss that is not usable is NaN."""

    candidate_id: str
    num_steps: int
    opening: tuple[float, ...]  # its first losses, as they were
    losses: tuple[float, ...]  # the whole curve: at most `MAX_POINTS` means of equally many steps
    step_seconds: float | None  # a step's mean; None: nothing was timed
    bytes_sent: int
    diverged: bool
    is_cut: bool = False  # ended before its allowance was spent
    averaged: tuple[int, ...] = ()  # its first steps after each average of workers that train apart
    client_drift: float = 0.0  # by how much its losses were raised to those of the workers' average
    block_steps: int | None = None  # steps per entry of `losses`, except the first; None: as `thinned` chooses
    spent: Spent
    searched_from: Spent = Spent()  # the run's totals when its search opened

    @classmethod
    def of(cls, observation: Observation, *, period: int = 1) -> "Reading":
        """Summarise the probe that `observation` measured, with workers that average every `period` steps."""
        assert observation.candidate_id is not None
        num_steps, seconds = len(observation.losses), observation.step_seconds
        averaged = first_steps(num_steps, period=period, steps_to_meeting=observation.steps_to_meeting)
        timed = seconds[max(1, len(seconds) // 10) :] or seconds  # the first tenth may calibrate
        return cls(
            candidate_id=observation.candidate_id,
            num_steps=num_steps,
            opening=observation.losses[:OPENING_LOSSES],
            losses=thinned(observation.losses),
            averaged=tuple(averaged) if num_steps <= MAX_POINTS else (),
            step_seconds=sum(timed) / len(timed) if timed else None,
            bytes_sent=observation.bytes_sent,
            diverged=observation.diverged,
            is_cut=observation.is_cut,
            spent=observation.spent,
            searched_from=observation.searched_from,
        )

    @property
    def steps_per_point(self) -> float:
        """The mean number of steps per entry of `losses`, which must not be empty."""
        return self.num_steps / len(self.losses)

    def begun(self, num_steps: float) -> "Reading":
        """Return the summary of the first `num_steps` steps, as a whole probe with at least one point of the curve."""
        starts = self._starts
        num_points = max(1, round(num_steps / self.steps_per_point))
        end = int(starts[num_points]) if num_points < len(starts) else self.num_steps
        return self.model_copy(
            update={
                "losses": self.losses[:num_points],
                "num_steps": end,
                "bytes_sent": round(self.bytes_sent * end / self.num_steps),
                "block_steps": block_size(self.num_steps) if self.block_steps is None else self.block_steps,
                "is_cut": False,
            }
        )

    @property
    def _starts(self) -> NDArray[np.int64]:
        return block_starts(self.num_steps, self.block_steps or block_size(self.num_steps))

    def means(self, num_steps: float, num_points: int) -> Array:
        """Return the losses of the first `num_steps` steps as `num_points` means of equally many steps."""
        starts = self._starts
        counts = np.diff(starts, append=self.num_steps)
        totals = np.concatenate([[0.0], np.cumsum(counts * np.asarray(self.losses))])
        grid = np.linspace(0.0, num_steps, num_points + 1)
        sums: Array = np.diff(np.interp(grid, [*starts, self.num_steps], totals))
        return sums * (num_points / num_steps)


def side_by_side(reading: Reading, other: Reading, num_steps: float, other_steps: float) -> tuple[Array, Array]:
    """Return the first `num_steps` and `other_steps` steps of two curves, each as m means `(m,)`."""
    num_points = min(num_steps / reading.steps_per_point, other_steps / other.steps_per_point)
    whole = max(1, int(num_points))
    return reading.means(num_steps, whole), other.means(other_steps, whole)


class Ending(Value):
    """The summary of a finished commit that a controller keeps."""

    #: The loss that the commit ended at; None: it was not kept, or no loss at its end is usable. An earlier release
    #: wrote it as `level`.
    end_loss: float | None = Field(validation_alias=AliasChoices("end_loss", "level"))
    diverged: bool
    rolled_back: bool
    started_over: bool = False  # rolled back to the run's first step
    num_steps: int
    bytes_sent: int
    losses: tuple[float, ...]  # the whole curve: means of equally many steps
    opening: tuple[float, ...] = ()  # its first losses, as they were
    signs: Signs
    events: tuple[Event, ...]  # the reasons among them to search again
    spent: Spent

    @classmethod
    def of(cls, observation: Observation, signs: Signs, events: tuple[Event, ...]) -> "Ending":
        """Summarise the commit that `observation` measured."""
        trace = trace_of(observation)
        return cls(
            end_loss=end_loss(observation),
            diverged=observation.diverged,
            rolled_back=observation.rolled_back,
            started_over=observation.started_over,
            num_steps=trace.num_steps,
            bytes_sent=observation.bytes_sent,
            losses=trace.losses,
            opening=trace.opening,
            signs=signs,
            events=events,
            spent=observation.spent,
        )

    def raised(self, rise: float) -> "Ending":
        """Return the summary with losses higher by `rise`."""
        end_loss = None if self.end_loss is None else self.end_loss + rise
        return self.model_copy(update={"end_loss": end_loss, "losses": tuple(loss + rise for loss in self.losses)})

    @property
    def is_kept(self) -> bool:
        """Return whether the run went on from where the commit ended."""
        return not self.diverged and not self.rolled_back

    @property
    def was_asleep(self) -> bool:
        """Return whether it was rolled back only because it learned nothing."""
        has_reason = self.diverged or self.started_over or "divergence" in self.events
        return self.rolled_back and self.signs.is_ignorant and not has_reason

    @property
    def has_failed(self) -> bool:
        """Return whether it was rolled back, or should have been: its values are not trusted any more."""
        return not self.is_kept or self.signs.has_worsened or self.signs.is_dead


def last_losses(losses: Sequence[float], num_steps: int) -> Sequence[float]:
    """Return the losses whose median is the end loss of a commit of `num_steps`: the last fifth, 20 to 200 steps.

    `losses` may be only the last ones of the commit.
    """
    return losses[-min(MAX_END_LOSSES, max(MIN_END_LOSSES, num_steps // 5)) :]


def end_loss(observation: Observation) -> float | None:
    """Return the loss that a commit ended at: the median of its last losses; None: it was not kept, or has none."""
    is_kept = not observation.diverged and not observation.rolled_back
    return usable_median(last_losses(observation.losses, num_steps_of(observation))) if is_kept else None


def num_steps_of(observation: Observation) -> int:
    """Return how many steps `observation` measured; its series may hold only the last ones."""
    return len(observation.losses) if observation.trace is None else observation.trace.num_steps


def trace_of(observation: Observation) -> Trace:
    """Return the trace of all steps of `observation`."""
    if observation.trace is not None:
        return observation.trace
    return Trace().extended(
        observation.losses, observation.step_seconds, observation.gradient_scales, observation.alignments
    )


def thinned(losses: Sequence[float]) -> tuple[float, ...]:
    """Return `losses` as at most `MAX_POINTS` means of equally many steps; a remainder joins the first block.

    A block with a loss that is not usable is NaN, so that no divergence is averaged away.
    """
    values = np.asarray(losses, dtype=np.float64)
    if len(values) == 0:
        return ()
    starts = block_starts(len(values), block_size(len(values)))
    counts = np.diff(starts, append=len(values))
    usable = np.where(np.abs(values) < LARGEST, values, np.nan)
    return tuple((np.add.reduceat(usable, starts) / counts).tolist())


def block_size(num_losses: int) -> int:
    """Return the block size by which `thinned` averages `num_losses` losses."""
    return -(-num_losses // MAX_POINTS)


def block_starts(num_losses: int, size: int) -> NDArray[np.int64]:
    """Return the first index of each block of `size` losses, for `num_losses` > 0; the first takes the remainder."""
    starts = np.arange(num_losses % size, num_losses, size)
    starts[0] = 0
    return starts


def usable_median(losses: Sequence[float]) -> float | None:
    """Return the median of the losses that are finite and not absurd, or None if there are none."""
    usable = [loss for loss in losses if abs(loss) < LARGEST]
    return median(usable) if usable else None
