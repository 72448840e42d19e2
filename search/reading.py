"""What a controller keeps of an observation: all that any decision reads, and no more. So a journal stays small."""

from collections.abc import Sequence

import numpy as np

from search.events import Event, Signs
from search.forecast import LARGEST
from search.trace import Trace
from search.types import Observation, Spent, Value

#: Longer curves are kept as means of blocks: as many points as a forecast tells apart.
MAX_POINTS = 400
#: Losses of a fresh run that tell where it starts: they are the same in all probes, up to the first updates.
OPENING_LOSSES = 5
#: Committed losses whose median is the level that a commit ended at.
MIN_LEVEL_LOSSES, MAX_LEVEL_LOSSES = 20, 200


class Reading(Value):
    """A finished probe, as its controller remembers it. A loss that is not usable is NaN."""

    candidate_id: str
    num_steps: int
    opening: tuple[float, ...]  # its first losses, as they were
    losses: tuple[float, ...]  # the whole curve: at most `MAX_POINTS` means of equally many steps
    step_seconds: float | None  # a step's mean; None: nothing was timed
    bytes_sent: int
    diverged: bool
    spent: Spent

    @classmethod
    def of(cls, observation: Observation) -> "Reading":
        """Read the probe that `observation` measured."""
        assert observation.candidate_id is not None
        timed = _calibrated(observation.step_seconds)
        return cls(
            candidate_id=observation.candidate_id,
            num_steps=len(observation.losses),
            opening=observation.losses[:OPENING_LOSSES],
            losses=thinned(observation.losses),
            step_seconds=sum(timed) / len(timed) if timed else None,
            bytes_sent=observation.bytes_sent,
            diverged=observation.diverged,
            spent=observation.spent,
        )

    @property
    def steps_per_point(self) -> float:
        """How many steps an entry of `losses`, which has some, stands for."""
        return self.num_steps / len(self.losses)


class Ending(Value):
    """A finished commit, as its controller remembers it."""

    level: float | None  # the loss that it ended at; None: it was not kept, or no loss of its end is usable
    diverged: bool
    rolled_back: bool
    num_steps: int
    bytes_sent: int
    losses: tuple[float, ...]  # the whole curve: means of equally many steps
    signs: Signs
    events: tuple[Event, ...]  # what of them is a reason to search again
    spent: Spent

    @classmethod
    def of(cls, observation: Observation, signs: Signs, events: tuple[Event, ...]) -> "Ending":
        """Read the commit that `observation` measured."""
        trace = trace_of(observation)
        return cls(
            level=end_level(observation),
            diverged=observation.diverged,
            rolled_back=observation.rolled_back,
            num_steps=trace.num_steps,
            bytes_sent=observation.bytes_sent,
            losses=trace.losses,
            signs=signs,
            events=events,
            spent=observation.spent,
        )

    @property
    def is_kept(self) -> bool:
        """Whether the run went on from where the commit ended."""
        return not self.diverged and not self.rolled_back


def end_level(observation: Observation) -> float | None:
    """Return where a commit that was kept ended: the median of its last fifth (20 to 200 losses)."""
    num_losses = min(MAX_LEVEL_LOSSES, max(MIN_LEVEL_LOSSES, len(observation.losses) // 5))
    is_kept = not observation.diverged and not observation.rolled_back
    return usable_median(observation.losses[-num_losses:]) if is_kept else None


def trace_of(observation: Observation) -> Trace:
    """Return the whole course of what `observation` measured."""
    if observation.trace is not None:
        return observation.trace
    return Trace().extended(observation.losses, observation.step_seconds, observation.gradient_scales)


def _calibrated(seconds: Sequence[float]) -> Sequence[float]:
    # the first tenth may calibrate, the first step most of all
    return seconds[max(1, len(seconds) // 10) :] or seconds


def thinned(losses: Sequence[float]) -> tuple[float, ...]:
    """Return `losses` as at most `MAX_POINTS` means of equally many steps; a remainder joins the first of them.

    A block with a loss that is not usable is NaN, so that no divergence is averaged away.
    """
    values = np.asarray(losses, dtype=np.float64)
    if len(values) == 0:
        return ()
    size = -(-len(values) // MAX_POINTS)
    starts = np.arange(len(values) % size, len(values), size)
    starts[0] = 0
    counts = np.diff(starts, append=len(values))
    usable = np.where(np.abs(values) < LARGEST, values, np.nan)
    return tuple((np.add.reduceat(usable, starts) / counts).tolist())


def usable_median(losses: Sequence[float]) -> float | None:
    """Return the median of the losses that are finite and not absurd, or None if none is."""
    usable = [loss for loss in losses if abs(loss) < LARGEST]
    return float(np.median(usable)) if usable else None
