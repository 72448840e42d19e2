"""A job as a page shows it, or what changed of it since an event. Functions of one open session; they write nothing."""

import sys
from collections.abc import Iterable, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.control import events, queries, sweeps
from service.control.metrics import points
from service.control.models import EventRow, TrialRow
from service.control.results.comparison import common_metric, comparison
from service.control.results.report import TrialFacts, job_report
from service.job.states import JobState
from service.wire.comparison import Comparison
from service.wire.events import EventKind
from service.wire.reports import JobReport, Prices
from service.wire.snapshot import Snapshot
from service.wire.stored import stored_spec
from service.wire.trials import ScheduleView, Series

#: Series that the page draws.
_DRAWN = ("loss", "validation_loss")
#: After more events than this the whole is cheaper than what changed.
_MAX_CHANGES = 2000
#: In these states an attempt takes trials back to their last checkpoint.
_RESET_IN = (JobState.QUEUED.value, JobState.STARTING.value)
_REPORTED = frozenset(EventKind) - {EventKind.PROGRESS, EventKind.PROBE, EventKind.CHECKPOINT, EventKind.STEERED}


def snapshot(
    session: Session, job_id: str, *, since: int | None, max_points: int, prices: Prices | None = None
) -> Snapshot:
    """Return the job with all that its page shows; with `since` only what events behind that id are about.

    It is whole all the same where the change cannot be told: events are gone or too many, or steps were taken back.

    Raises UnreadableJob: a page draws what the job's own parts say.
    """
    job = queries.job_row(session, job_id)
    cursor = events.bounds(session)[1]
    changed = [] if since is None else _changes(session, job_id, since)
    is_lost = since is None or events.is_gap(session, since) or len(changed) > _MAX_CHANGES
    found = queries.trials(session, job_id)
    if is_lost or any(map(_takes_back, changed)):
        return Snapshot(
            cursor=cursor,
            whole=True,
            job=queries.job_view(job),
            trials=tuple(map(queries.trial_view, found)),
            stages=queries.decided_stages(session, found),
            schedules=schedules(session, job_id, found),
            series=_series(session, found, max_points=max_points),
            report=report(session, job_id, prices),
        )
    touched = {row.data["trial_id"] for row in changed if "trial_id" in row.data}
    kinds = {row.kind for row in changed}
    trials = [trial for trial in found if trial.id in touched]
    return Snapshot(
        cursor=cursor,
        whole=False,
        job=queries.job_view(job) if EventKind.JOB in kinds else None,
        trials=tuple(map(queries.trial_view, trials)),
        stages=queries.decided_stages(session, trials, only=_stages(changed)),
        schedules=schedules(session, job_id, trials),
        series=_new_series(session, trials, changed, max_points=max_points),
        report=report(session, job_id, prices) if kinds & _REPORTED else None,
    )


def version(session: Session, job_id: str) -> str:
    """Return what differs between any two snapshots of the job that differ; raises NotFound.

    Of one release, and at the same prices.
    """
    return f"{queries.job_row(session, job_id).version}-{events.newest_of(session, job_id)}"


def report(session: Session, job_id: str, prices: Prices | None = None) -> JobReport:
    """Return what every trial and arm of the job came to; raises UnreadableJob."""
    found = queries.trials(session, job_id)
    job = queries.job_view(queries.job_row(session, job_id))
    metric = job.readable.objective.metric
    facts = [
        TrialFacts(
            view=queries.trial_view(trial),
            curve=queries.series(session, trial, f"validation_{metric}", max_points=sys.maxsize),
            z_scores=queries.z_scores(session, trial.id),
            unsearched=queries.unsearched(session, trial.id),
            overfitted=queries.overfitted(session, trial, metric),
            steered=queries.steered(session, trial.id),
        )
        for trial in found
    ]
    ranking = sweeps.report(job.readable, sweeps.rungs(session, job_id), [each.view for each in facts])
    return job_report(job, facts, prices=prices, sweep=ranking)


def compared(session: Session, job_ids: Sequence[str]) -> Comparison:
    """Return the jobs side by side, all of one moment; raises NotFound and UnreadableJob."""
    jobs = [queries.job_view(queries.job_row(session, job_id)) for job_id in job_ids]
    reports = [report(session, job_id) for job_id in job_ids]
    metric = common_metric(reports)
    trials = [trial for job_id in job_ids for trial in queries.trials(session, job_id)]
    curves = [queries.series(session, trial, f"validation_{metric}", max_points=sys.maxsize) for trial in trials]
    return comparison(jobs, reports, metric, curves)


def schedules(session: Session, job_id: str, trials: Sequence[TrialRow]) -> tuple[ScheduleView, ...]:
    """Return the learned schedules of `trials`; of an unfinished one, what is decided. Raises UnreadableJob."""
    spec = stored_spec(job_id, queries.job_row(session, job_id).spec)
    drawn = queries.samples(trials)  # of no others: to check what a sample sets takes as long as all the rest
    optimizers = {(trial.arm, trial.seed): trial.replica.optimizer for trial in spec.trials(drawn)}
    return tuple(queries.schedule_view(session, trial, optimizer=optimizers[trial.arm, trial.seed]) for trial in trials)


def recorded_schedules(session: Session, job_id: str, trials: Sequence[TrialRow]) -> tuple[ScheduleView, ...]:
    """Return the same, each with the run that it was learned in, and without stages that have no step."""
    job = queries.job_row(session, job_id)
    return tuple(
        view.model_copy(
            update={
                "provenance": queries.provenance(job, trial),
                "entries": tuple(entry for entry in view.entries if entry.num_steps),
            }
        )
        for view, trial in zip(schedules(session, job_id, trials), trials, strict=True)
    )


def _changes(session: Session, job_id: str, since: int) -> Sequence[EventRow]:
    behind = select(EventRow).where(EventRow.job_id == job_id, EventRow.id > since)
    return session.scalars(behind.order_by(EventRow.id).limit(_MAX_CHANGES + 1)).all()


def _takes_back(row: EventRow) -> bool:
    return row.data.get("state") in _RESET_IN or (row.kind == EventKind.STAGE_CLOSED and row.data["num_steps"] == 0)


def _stages(changed: Iterable[EventRow]) -> set[tuple[str, int]]:
    return {(row.data["trial_id"], row.data["stage"]) for row in changed if "stage" in row.data}


def _series(session: Session, trials: Iterable[TrialRow], *, max_points: int) -> tuple[Series, ...]:
    return tuple(queries.series(session, trial, name, max_points=max_points) for name in _DRAWN for trial in trials)


def _new_series(
    session: Session, trials: Iterable[TrialRow], changed: Iterable[EventRow], *, max_points: int
) -> tuple[Series, ...]:
    """Return the points from the lowest step on that an event tells of; some may be known."""
    first: dict[str, int] = {}
    for row in changed:
        if (step := row.data.get("first_step")) is not None and row.kind == EventKind.PROGRESS:
            first[row.data["trial_id"]] = min(step, first.get(row.data["trial_id"], step))
    return tuple(
        queries.series_of(trial, name, points.thinned(new, max_points), num_points=len(new))
        for name in _DRAWN
        for trial in trials
        if trial.id in first
        if (new := list(points.every(session, points.Key(trial.id, name), after=first[trial.id] - 1)))
    )
