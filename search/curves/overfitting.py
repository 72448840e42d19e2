"""Tell that a model learns its training data by heart: more steps do not help it on data that it does not train on."""

from search.types import Value

#: The training loss of a model that has learned its data by heart, as a share of its validation loss.
LEARNED_SHARE = 0.5
#: Evaluations in a row without a record, at least: one may be chance.
LEAST_EVALUATIONS = 2


class Validation(Value):
    """The course of a run's validation loss since its first step. Each loss is that of the weights or of their average.

    An average of the weights shows what a falling rate would reach. Where it is no better, nor would that be.
    """

    lowest: float | None = None
    step: int = 0  # of the lowest
    num_since: int = 0  # evaluations since then
    overfits: bool = False

    def after(self, loss: float, training_loss: float, step: int) -> "Validation":
        """Return the course with the evaluation after `step` steps; `training_loss` is the mean of the last of them.

        A model overfits if there was no record in the last half of its steps, and its training loss is below half of
        its validation loss.
        """
        if self.lowest is None or loss < self.lowest:
            return Validation(lowest=loss, step=step)
        num_since = self.num_since + 1
        is_stale = num_since >= LEAST_EVALUATIONS and step >= 2 * self.step
        overfits = is_stale and training_loss < LEARNED_SHARE * loss
        return self.model_copy(update={"num_since": num_since, "overfits": overfits})
