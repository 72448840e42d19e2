"""Finds the weights of a trial that a user asks for."""

from service.errors import NotFound
from service.job.states import TERMINAL
from service.wire.artifacts import Which
from service.wire.jobs import JobView
from service.wire.trials import TrialView


def weights_sha256(trial: TrialView, url: str) -> str | None:
    """Return the SHA-256 of the trial's weights at `url`; None: an earlier release has not said."""
    return trial.last_weights_sha256 if url == trial.last_weights_url else trial.weights_sha256


def weights_url(job: JobView, trial: TrialView, which: Which | None) -> str:
    """Return where the trial's weights are, None: those that the job exports.

    Raises NotFound with the reason, and UnreadableJob where that depends on what this release cannot read.
    """
    name = f"trial `{trial.trial_id}`"
    if trial.weights_url is None:
        why = "the job ended before it had" if job.state in TERMINAL else "it has not finished"
        raise NotFound(f"{name} has no weights: {why}")
    if which is None:
        return trial.weights_url
    if trial.outcome is None:  # it was extended
        raise NotFound(f"{name} has not finished again: without `which` its earlier weights are there")
    if which == "best" and job.readable.checkpoint.export == "last":
        raise NotFound(
            f"{name} has no best weights: with `checkpoint.export: last` no best state is kept; clone the job with "
            "`checkpoint: {export: best}`"
        )
    if which == "last" and trial.exported_step is not None:
        if trial.last_weights_url is None:
            raise NotFound(f"the last weights of {name} were not kept: it ended in an earlier release")
        return trial.last_weights_url
    return trial.weights_url
