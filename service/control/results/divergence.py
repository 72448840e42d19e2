"""Says why trials diverged, and what to do about it. Pure functions."""

from collections.abc import Sequence

from service.wire.records import Divergence
from service.wire.trials import TrialView


def why(found: Divergence | None) -> str:
    """Return a trial's divergence in a sentence; None: an earlier release has not said where it was."""
    if found is None:
        return "diverged"
    if found.step == 0:
        return (
            "diverged at step 0, before any update: no learning rate is to blame. Look at the loss and at the data: "
            "inputs that are not finite, a logarithm of 0, a division by 0"
        )
    return (
        f"diverged at step {found.step}: the learning rate, {found.learning_rate:.3g}, is too high for it. Give a "
        "lower `optimizer.learning_rate`, `warmup_steps` or `clip`; if a tenth of it diverges at the same step, look "
        "at the data"
    )


def why_all(trials: Sequence[TrialView]) -> str | None:
    """Return why a job has nothing to show: every trial of it diverged. None: at least one did not."""
    if any(trial.outcome != "diverged" for trial in trials):
        return None
    first = trials[0]
    if len(trials) == 1:
        return f"the training {why(first.divergence)}"
    return f"all {len(trials)} trials diverged. Arm `{first.arm}`, seed {first.seed}, {why(first.divergence)}"
