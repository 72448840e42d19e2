"""The result that lists order jobs by. Pure functions."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from service.job.parts import LOSS
from service.wire.metrics import sign, value_of
from service.wire.trials import UNSUCCESSFUL, TrialView


class JobResult(NamedTuple):
    """The best value of the objective's metric, and its score: negated if higher is better, so that lower is better."""

    value: float
    score: float


def metric_of(spec: Mapping[str, Any]) -> str:
    """Return the metric of a stored job's objective; any release may have stored the job."""
    metric: str = spec.get("objective", {}).get("metric", LOSS)
    return metric


def job_result(metric: str, trials: Iterable[TrialView]) -> JobResult | None:
    """Return the best result of the trials that ended well; None if none has a finite one."""
    results = [
        JobResult(value, sign(trial.metric_directions.get(metric)) * value)
        for trial in trials
        if trial.outcome is not None and trial.outcome not in UNSUCCESSFUL
        if (value := value_of(trial, metric)) is not None and math.isfinite(value)
    ]
    return min(results, key=lambda each: each.score, default=None)
