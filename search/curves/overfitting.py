"""Tell that a model learns its training data by heart: more steps do not help it on data that it does not train on."""

import math
from collections.abc import Sequence

from search.types import Value

#: The training loss of a model that has learned its data by heart, as a share of its validation loss.
LEARNED_SHARE = 0.5
#: The last steps whose mean is the training loss, and the least of them: one batch may be an easy one.
MOST_LOSSES, LEAST_LOSSES = 50, 20
#: Evaluations in a row without a record, at least: one may be chance.
LEAST_EVALUATIONS = 2


class Validation(Value):
    """The course of a run's validation loss since its first step. Each loss is that of the weights or of their average.

    An average of the weights shows what a falling rate would reach. Where it is no better, nor would that be.
    """

    lowest: float | None = None
    step: int = 0  # of the last record
    num_since: int = 0  # evaluations since then
    overfits: bool = False
    before: float | None = None  # the lowest before the run started over

    def after(self, loss: float, losses: Sequence[float], step: int, *, is_record: bool = False) -> "Validation":
        """Return the course with the evaluation after `step` steps; `losses` are those of the last steps in training.

        `is_record`: the job's metric was better than ever, whatever the loss. A model overfits if there was no record
        in the last half of its steps, and its training loss is below half of its validation loss. One that started over
        and got no better does not do so again.
        """
        if not math.isfinite(loss):
            return self
        lowest = loss if self.lowest is None else min(loss, self.lowest)
        if is_record or lowest != self.lowest:
            return Validation(lowest=lowest, step=step, before=self.before)
        num_since = self.num_since + 1
        is_stale = num_since >= LEAST_EVALUATIONS and step >= 2 * self.step
        has_helped = self.before is None or lowest < self.before
        overfits = is_stale and has_helped and lowest >= 0 and _knows_by_heart(losses[-MOST_LOSSES:], loss)
        return self.model_copy(update={"num_since": num_since, "overfits": overfits})

    def anew(self) -> "Validation":
        """Return the course of the run that starts over."""
        known = [each for each in (self.lowest, self.before) if each is not None]
        return Validation(before=min(known, default=None))


def _knows_by_heart(losses: Sequence[float], loss: float) -> bool:
    if len(losses) < LEAST_LOSSES or min(losses) < 0:  # zero means nothing then, and neither does a share of a loss
        return False
    return sum(losses) / len(losses) < LEARNED_SHARE * loss
