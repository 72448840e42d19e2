"""Explain why trials diverged or failed, and what to do about it. Pure functions."""

from collections.abc import Sequence

from search.types import MIN_LEARNING_RATE
from service.wire.records import Divergence
from service.wire.trials import UNSUCCESSFUL, TrialView


def why(found: Divergence | None) -> str:
    """Return a trial's divergence in a sentence; None: an earlier release has not said where it was."""
    if found is None:
        return "diverged"
    if found.step == 0:
        return (
            "diverged at step 0, before any update: no learning rate is to blame. Look at the loss and at the data: "
            "inputs that are not finite, a logarithm of 0, a division by 0"
        )
    if found.learning_rate <= MIN_LEARNING_RATE:
        return (
            f"diverged at step {found.step}, even at {found.learning_rate:.3g}, the lowest learning rate that may be "
            "used. Scale the inputs and the targets to about 1, or give `clip`; if it diverges then too, look at the "
            "loss and at the data of that step"
        )
    if found.learning_rates:
        *earlier, last = (f"{rate:.3g}" for rate in found.learning_rates)
        return (
            f"diverged at step {found.step}, at the learning rates {', '.join(earlier)} and {last}: a lower one does "
            "not help. Look at the loss and at the data of that step: inputs that are not finite, a logarithm of 0, a "
            "division by 0"
        )
    return (
        f"diverged at step {found.step}: the learning rate, {found.learning_rate:.3g}, is too high for it. Give a "
        "lower `optimizer.learning_rate`, `warmup_steps` or `clip`; if a tenth of it diverges at the same step, look "
        "at the data"
    )


def why_all(trials: Sequence[TrialView], *, stopped: bool = False) -> str | None:
    """Return why an ended job has no result: all its trials diverged, or all its samples failed; else None.

    A job that was `stopped`, or some of whose trials were, leaves out those that had not begun.
    """
    failed = [trial for trial in trials if trial.outcome == "failed"]
    if failed and len(failed) == sum(trial.sample is not None for trial in trials):
        return f"every sample failed; `{failed[0].arm}`: {failed[0].failure}"
    without_result = UNSUCCESSFUL | {None} if stopped else UNSUCCESSFUL
    if any(trial.outcome not in without_result for trial in trials):
        return None
    if any(trial.outcome is None for trial in trials):
        return "stopped before any trial had a result"
    first = trials[0]
    if len(trials) == 1:
        return f"the training {why(first.divergence)}"
    how = "diverged or failed" if failed else "diverged"
    return f"all {len(trials)} trials {how}. Arm `{first.arm}`, seed {first.seed}, {why(first.divergence)}"
