"""The progress of listed jobs, by three queries for all. Functions of one open session; they only read."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from service.control.metrics import points
from service.control.models import AttemptRow, JobRow, TrialRow
from service.control.results import ranking
from service.job.states import ACTIVE, TERMINAL, JobState
from service.wire.jobs import JobProgress
from trainers.methods.exchange.auto.spec import JobExchange

#: Of a curve as lists draw it.
MAX_POINTS = 40
# Made once: to put it together takes as long as to run it.
_TRIALS = (
    select(
        TrialRow.id,
        TrialRow.job_id,
        TrialRow.arm,
        TrialRow.outcome,
        TrialRow.backend,
        TrialRow.step,
        TrialRow.seconds,
        TrialRow.learning_rate,
        TrialRow.level,
        TrialRow.validation_loss,
        TrialRow.validation_metrics,
        TrialRow.metric_directions,
        TrialRow.bill,
        TrialRow.sample,
        TrialRow.schedule["stopped"].as_boolean().label("stopped"),  # a whole schedule is long
        AttemptRow.trials.label("at_once"),  # of the job's last attempt
    )
    .join(JobRow, JobRow.id == TrialRow.job_id)
    .outerjoin(AttemptRow, (AttemptRow.job_id == JobRow.id) & (AttemptRow.number == JobRow.attempt))
    .where(TrialRow.job_id.in_(bindparam("job_ids", expanding=True)))
    .order_by(TrialRow.job_id, TrialRow.position)
)
_Trial = Any  # a row of those columns
_exchange: TypeAdapter[Any] = TypeAdapter(JobExchange)


def progress(session: Session, jobs: Sequence[JobRow]) -> dict[str, JobProgress]:
    """Return the progress of each of `jobs`, by its id."""
    rows = session.execute(_TRIALS, {"job_ids": [job.id for job in jobs]})
    trials = {job_id: list(found) for job_id, found in groupby(rows, key=lambda row: row.job_id)}
    shown = {job.id: _shown(job, trials[job.id]) for job in jobs}
    begun = [trial.id for trial in shown.values() if trial.step]
    curves = points.parts(session, begun, "validation_loss", max_points=MAX_POINTS)
    return {job.id: _progress(job, trials[job.id], shown[job.id], curves) for job in jobs}


def _shown(job: JobRow, trials: Sequence[_Trial]) -> _Trial:
    """Return a trial of the best arm, or of any arm until each has ended with some seed: the worst may end first.

    Of these it is the one that trains; where none does, the one with the lowest loss, and the first of those without.
    """
    ended = {trial.arm for trial in trials if trial.outcome is not None}
    is_known = job.job_state in TERMINAL or all(trial.arm in ended for trial in trials)
    best = ranking.best_arm(ranking.metric_of(job.spec), trials) if is_known else None
    shown = [trial for trial in trials if best is None or best[0] == trial.arm]
    training = [trial for trial in shown if _trains(trial)]
    return training[-1] if training else min(shown, key=_loss)


def _trains(trial: _Trial) -> bool:
    """Return whether the trial has begun and not ended. In a resumed job it may wait for its turn to go on."""
    return trial.backend is not None and trial.outcome is None


def _clock(trial: _Trial) -> float:
    """Return the seconds on the trial's training clock. Within a search only its bill grows."""
    return max(float(trial.seconds), float(trial.bill.get("seconds_training", 0.0)))


def _loss(trial: _Trial) -> float:
    return float("inf") if trial.validation_loss is None else trial.validation_loss


def _progress(
    job: JobRow, trials: Sequence[_Trial], shown: _Trial, curves: Mapping[str, Sequence[float | None]]
) -> JobProgress:
    budget = job.spec["budget"]
    shares = [spent(budget, trial) for trial in trials]
    of_arm = [trial.bill for trial in trials if trial.arm == shown.arm]
    trains = job.job_state in ACTIVE and job.job_state is not JobState.STARTING and any(map(_trains, trials))
    return JobProgress.model_construct(
        share=sum(shares) / len(trials),
        seconds_left=_seconds_left(budget, trials) if trains else None,
        num_trials=len(trials),
        num_finished=sum(trial.outcome is not None for trial in trials),
        arm=shown.arm,
        learning_rate=shown.learning_rate,
        level=shown.level,
        level_name="level" if shown.level is None else _level_name(job.spec, shown),
        bytes_sent=sum(bill.get("bytes_sent", 0) for bill in of_arm),
        bytes_dense=sum(bill.get("bytes_dense", 0) for bill in of_arm),
        losses=tuple(curves.get(shown.id, ())),
    )


def spent(budget: Mapping[str, Any], trial: _Trial) -> float:
    """Return the share of its budget that a trial has spent; one that completed needs no more of it."""
    return 1.0 if trial.outcome == "completed" else used(budget, trial)


def used(budget: Mapping[str, Any], trial: _Trial) -> float:
    """Return the largest share of a cap of `budget` that a trial has used, at most 1."""
    if trial.backend is None:
        return 0.0
    steps = trial.step + trial.bill.get("steps_search", 0) + trial.bill.get("steps_taken_back", 0)
    used = {"seconds": _clock(trial), "steps": steps, "bytes": trial.bill.get("bytes_sent", 0)}
    shares = (used[unit] / cap for unit, cap in budget.items() if cap is not None and unit in used)
    largest: float = max(shares, default=0.0)  # another release may have other units
    return min(1.0, largest)


def _seconds_left(budget: Mapping[str, Any], trials: Sequence[_Trial]) -> float | None:
    """Return the remaining seconds at the trials' pace so far, with as many side by side as train now."""
    shares = [used(budget, trial) for trial in trials]  # a trial that ended early tells of the pace, not of an end
    pace = [sum(map(_clock, trials)) / sum(shares)] if any(shares) else []
    cap = [] if budget["seconds"] is None else [budget["seconds"]]
    whole = min(pace + cap, default=None)  # of one trial
    left = sum(1 - each for trial, each in zip(trials, shares, strict=True) if trial.outcome is None)
    num_begun = sum(map(_trains, trials))
    num_training = min(num_begun, trials[0].at_once or num_begun)  # None: an earlier release began the attempt
    return None if whole is None else whole * left / num_training


def _level_name(spec: Mapping[str, Any], trial: _Trial) -> str:
    own = next((each["exchange"] for each in spec["arms"] if each["name"] == trial.arm), None)
    sampled = None if trial.sample is None else (trial.sample["values"] or {}).get("exchange")
    return _name_of(json.dumps(sampled or own or spec["exchange"]))


@lru_cache(1024)
def _name_of(exchange: str) -> str:
    try:
        name: str = _exchange.validate_json(exchange).level_name
    except ValidationError:  # of another release
        return "level"
    return name
