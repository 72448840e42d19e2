"""What a controller keeps of an observation: all that any decision reads, and no more. So a journal stays small."""

from collections.abc import Sequence

import numpy as np

from search.forecast import LARGEST
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
        timed = observation.step_seconds[len(observation.step_seconds) // 10 :]  # the first tenth may calibrate
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

    level: float | None  # the loss that it ended at; None: it diverged, or no loss of its end is usable
    diverged: bool
    spent: Spent

    @classmethod
    def of(cls, observation: Observation) -> "Ending":
        """Read the commit that `observation` measured; its level is the median of the last fifth (20 to 200 losses)."""
        num_losses = min(MAX_LEVEL_LOSSES, max(MIN_LEVEL_LOSSES, len(observation.losses) // 5))
        level = None if observation.diverged else usable_median(observation.losses[-num_losses:])
        return cls(level=level, diverged=observation.diverged, spent=observation.spent)


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
