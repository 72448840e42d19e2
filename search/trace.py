"""The curves of a commit in a bounded number of points, however long it gets: means over blocks of its steps."""

import math
from collections.abc import Sequence
from itertools import zip_longest

from pydantic import BaseModel, ConfigDict, Field, field_validator

#: A trace has at most this many points, and at least half of them once it had that many.
MAX_POINTS = 200
#: This many first losses are kept as they were: they show where a run starts, however long it gets.
NUM_OPENING = 5
#: Limit of the summed cosines: this many steps that fully agree with those before. More say nothing new.
MOST_ALIGNED = 24.5
Point = tuple[float, float, float, float]


class Trace(BaseModel):
    """Means over blocks of `steps_per_point` steps each: losses, seconds per step, gradient scales, waits.

    A series that was not measured is all NaN. `rest` has the steps of an unfinished block, one by one.
    `aligned` sums the cosines between each step's descent direction and the update before, within [0, `MOST_ALIGNED`].
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")

    steps_per_point: int = 1
    points: tuple[Point, ...] = Field(
        (), description="by block: loss, step seconds, gradient scale, seconds of a step that waited for the exchange"
    )
    rest: tuple[Point, ...] = ()
    opening: tuple[float, ...] = Field((), description="its first losses as they were; an earlier release kept none")
    aligned: float = 0.0

    @field_validator("points", "rest", mode="before")
    @classmethod
    def _have_waits(cls, points: Sequence[Sequence[float | None]]) -> list[tuple[float | None, ...]]:
        # an earlier release had no waits, or wrote null where they were not measured
        return [(*point[:3], math.nan if point[3:] in ((), [], (None,), [None]) else point[3]) for point in points]

    @property
    def num_steps(self) -> int:
        return self.steps_per_point * len(self.points) + len(self.rest)

    @property
    def losses(self) -> tuple[float, ...]:
        return tuple(point[0] for point in self.points)

    @property
    def step_seconds(self) -> tuple[float, ...]:
        return tuple(point[1] for point in self.points)

    @property
    def gradient_scales(self) -> tuple[float, ...]:
        return tuple(point[2] for point in self.points)

    @property
    def waits(self) -> tuple[float, ...]:
        return tuple(point[3] for point in self.points)

    def extended(
        self,
        losses: Sequence[float],
        step_seconds: Sequence[float],
        gradient_scales: Sequence[float],
        alignments: Sequence[float] = (),
        waits: Sequence[float] = (),
    ) -> "Trace":
        """Return the trace with further steps, one entry per step in each series.

        The result does not depend on how the steps are split over calls.
        """
        size, points, rest = self.steps_per_point, list(self.points), list(self.rest)
        for step in zip_longest(losses, step_seconds, gradient_scales, waits, fillvalue=math.nan):
            rest.append(step)
            if len(rest) == size:
                points.append(_mean(rest))
                rest = []
            if len(points) == MAX_POINTS:
                points = [_mean(points[index : index + 2]) for index in range(0, MAX_POINTS, 2)]
                size *= 2
        aligned = self.aligned
        for cosine in alignments:
            aligned = min(MOST_ALIGNED, max(0.0, aligned + cosine))
        missing = NUM_OPENING - min(NUM_OPENING, self.num_steps)  # none where an earlier release has begun the trace
        opening = (*self.opening, *losses[:missing])
        return Trace(steps_per_point=size, points=tuple(points), rest=tuple(rest), opening=opening, aligned=aligned)


def _mean(points: Sequence[Point]) -> Point:
    loss, seconds, scale, wait = (sum(series) / len(points) for series in zip(*points, strict=True))
    return loss, seconds, scale, wait
