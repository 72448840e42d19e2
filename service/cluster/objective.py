"""Rank the states of a run by the job's objective."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from service.job.parts import LOSS, Direction, Objective
from service.wire.metrics import sign
from trainers.segment import Evaluation
from trainers.workload import WorkloadError


class Judge(NamedTuple):
    """Ranks evaluated states by one metric of the workload."""

    metric: str
    direction: Direction
    target: float | None = None

    def score(self, evaluation: Evaluation) -> float | None:
        """Return the metric, negated if higher is better, so that lower is better; None if it is not finite."""
        value = evaluation.loss if self.metric == LOSS else evaluation.metrics[self.metric]
        if not math.isfinite(value):
            return None
        return sign(self.direction) * value

    def is_at_target(self, score: float | None) -> bool:
        """Return whether `score` reaches the job's target."""
        if score is None or self.target is None:
            return False
        return score <= sign(self.direction) * self.target

    def rank(self, evaluation: Evaluation) -> float:
        """Return the number that ranks states, lowest first; a metric that is not finite ranks last."""
        score = self.score(evaluation)
        return math.inf if score is None else score


def judge_by(objective: Objective, metrics: Mapping[str, Direction]) -> Judge:
    """Return the judge of a run whose workload has `metrics` besides its loss. Raises WorkloadError for any other."""
    if conflict := objective.conflict(metrics):
        raise WorkloadError(conflict.message)
    direction = "min" if objective.metric == LOSS else metrics[objective.metric]
    return Judge(objective.metric, direction, objective.target)
