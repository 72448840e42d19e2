"""Detect overfitting from a trial's curves. Pure functions."""

from statistics import median
from typing import NamedTuple

from service.job.parts import Direction
from service.wire.metrics import sign
from service.wire.trials import Series

#: A smaller relative loss from the best to the final value of a metric may be noise.
NOTABLE = 0.05
#: With fewer points of the training loss after the best, its trend is unclear.
_LEAST_POINTS = 8


class Worsening(NamedTuple):
    """A validation metric that ended worse than it was after `step` steps."""

    step: int
    best: float
    last: float

    @property
    def share(self) -> float:
        """The loss of quality, as a share of the best value."""
        return abs(self.last - self.best) / abs(self.best)


def worsening(curve: Series, direction: Direction) -> Worsening | None:
    """Return how far the metric of `curve` ended from its best; None if not notably."""
    known = [(step, value) for step, value in zip(curve.steps, curve.values, strict=True) if value is not None]
    if not known:
        return None
    step, best = min(known, key=lambda point: sign(direction) * point[1])
    last = known[-1][1]
    is_notable = best != 0 and abs(last - best) >= NOTABLE * abs(best)
    return Worsening(step, best, last) if is_notable else None


def sentence(found: Worsening, metric: str, training: Series) -> str | None:
    """Return a sentence if the `training` loss still fell after the best; None if not, or unclear."""
    after = [
        value
        for step, value in zip(training.steps, training.values, strict=True)
        if step > found.step and value is not None
    ]
    quarter = len(after) // 4
    if len(after) < _LEAST_POINTS or median(after[-quarter:]) >= median(after[:quarter]):
        return None
    went = "rose" if found.last > found.best else "fell"
    return (
        f"overfitted: after step {found.step} the validation {metric} {went} by {found.share:.0%}, from "
        f"{found.best:.4g} to {found.last:.4g}, while the training loss fell"
    )
