"""The result that lists order jobs by, and the best of a job's trials. Pure functions."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from service.job.parts import BEST_TRIAL, LOSS
from service.wire.metrics import sign, value_of
from service.wire.trials import UNSUCCESSFUL, TrialView


class JobResult(NamedTuple):
    """The value of the objective's metric, and its score: negated if higher is better, so that lower is better."""

    value: float
    score: float


def metric_of(spec: Mapping[str, Any]) -> str:
    """Return the metric of a stored job's objective; any release may have stored the job."""
    metric: str = spec.get("objective", {}).get("metric", LOSS)
    return metric


def job_result(metric: str, trials: Sequence[TrialView]) -> JobResult | None:
    """Return the best arm's mean over its seeds, or the best sample of a sweep; None if no trial has a result."""
    found = best_arm(metric, trials)
    return None if found is None else found[1]


def best_arm(metric: str, trials: Sequence[Any]) -> tuple[str, JobResult] | None:
    """Return the arm, or sample, with the best mean of its trials that ended well, and that mean; None: there is none.

    A sample that ended early counts only if nothing else has a result. `trials` are views or rows.
    """
    whole = [trial for trial in trials if trial.sample is None or not trial.stopped]
    return _best_of(metric, whole) or _best_of(metric, trials)


def _best_of(metric: str, trials: Iterable[Any]) -> tuple[str, JobResult] | None:
    """Return the same of all `trials`. As in the report, arms that diverged on fewer seeds come first."""
    arms: dict[str, list[Any]] = {}
    for trial in trials:
        arms.setdefault(trial.arm, []).append(trial)
    ranked = [
        (sum(trial.outcome in UNSUCCESSFUL for trial in arm), result.score, name, result)
        for name, arm in arms.items()
        if (result := _mean(metric, arm)) is not None
    ]
    return min(ranked)[2:] if ranked else None


def _mean(metric: str, arm: Sequence[Any]) -> JobResult | None:
    """Return the mean of an arm's trials that ended well; None if none has a finite result."""
    values = [
        value
        for trial in arm
        if trial.outcome is not None and trial.outcome not in UNSUCCESSFUL
        if (value := value_of(trial, metric)) is not None and math.isfinite(value)
    ]
    if not values:
        return None
    mean = fmean(values)
    directions = (trial.metric_directions[metric] for trial in arm if metric in trial.metric_directions)
    return JobResult(mean, sign(next(directions, None)) * mean)


def chosen(
    trials: Sequence[TrialView], arm: str | None, seed: int | None, best_trial: Callable[[], str | None]
) -> list[TrialView]:
    """Return the trials of `arm` and `seed`; None: of any. The arm `best` means the best trial, or its arm with `seed`.

    `best_trial` is called only then, since it needs the job's report. Jobs of earlier releases may have an arm that is
    called `best`: it keeps its name.
    """
    if arm == BEST_TRIAL and all(trial.arm != BEST_TRIAL for trial in trials):
        known = best_trial()
        best = next((trial for trial in trials if trial.trial_id == known), None)
        if best is None:
            return []
        arm, seed = best.arm, best.seed if seed is None else seed
    return [trial for trial in trials if arm in (None, trial.arm) and seed in (None, trial.seed)]


def default_arm(trials: Iterable[TrialView], arm: str | None, seed: int | None) -> str | None:
    """Return the arm to take a single trial of: `best` in a sweep, unless a choice is given. Its arms come first."""
    has_choice = arm is not None or seed is not None
    return arm if has_choice or all(trial.sample is None for trial in trials) else BEST_TRIAL
