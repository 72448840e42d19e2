"""A job as its page shows it, or what changed since an event. Functions of one open session; they only read."""

from collections.abc import Iterable, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.control import events, queries
from service.control.metrics import points
from service.control.models import EventRow, TrialRow
from service.control.results.outcomes import REPORTED, ReportCache, report, schedules, shared_report
from service.job.states import JobState
from service.wire.events import EventKind
from service.wire.reports import Prices
from service.wire.snapshot import Snapshot
from service.wire.trials import Series

#: Series that the page draws.
_DRAWN = ("loss", "validation_loss")
#: Points of all drawn series of a whole snapshot. With the most trials that a job can have, a series keeps thirty.
_MOST_POINTS = 200_000
#: After more events than this the whole is cheaper than what changed.
_MAX_CHANGES = 2000
#: In these states an attempt takes trials back to their last checkpoint.
_RESET_IN = (JobState.QUEUED.value, JobState.STARTING.value)


def snapshot(
    session: Session,
    job_id: str,
    *,
    since: int | None,
    max_points: int,
    max_attempts: int,
    prices: Prices | None,
    kept: ReportCache,
) -> Snapshot:
    """Return all that the job's page shows; with `since`, only what events after that id have changed.

    All is returned, too, if the change is unknown: events are gone or too many, or steps were rolled back. A series has
    fewer than `max_points` points where the job has so many trials that all would have more than `_MOST_POINTS`.

    Raises UnreadableJob: a page draws what the job's own parts say.
    """
    job = queries.job_row(session, job_id)
    bounds = events.bounds(session)
    cursor = bounds[1]
    changed = [] if since is None else _changes(session, job_id, since)
    is_lost = since is None or events.is_outside(since, bounds) or len(changed) > _MAX_CHANGES
    found = queries.trials(session, job_id)
    max_points = min(max_points, _MOST_POINTS // (len(_DRAWN) * max(1, len(found))))
    if is_lost or any(map(_takes_back, changed)):
        return Snapshot(
            cursor=cursor,
            whole=True,
            job=queries.shown_job(session, job, max_attempts=max_attempts),
            trials=tuple(map(queries.trial_view, found)),
            stages=queries.decided_stages(session, found),
            schedules=schedules(session, job_id, found),
            series=_series(session, found, max_points=max_points),
            report=report(session, job_id, kept, prices),
        )
    touched = {row.data["trial_id"] for row in changed if "trial_id" in row.data}
    kinds = {row.kind for row in changed}
    trials = [trial for trial in found if trial.id in touched]
    return Snapshot(
        cursor=cursor,
        whole=False,
        job=queries.shown_job(session, job, max_attempts=max_attempts) if EventKind.JOB in kinds else None,
        trials=tuple(map(queries.trial_view, trials)),
        stages=queries.decided_stages(session, trials, only=_stages(changed)),
        schedules=schedules(session, job_id, trials),
        series=_new_series(session, trials, changed, max_points=max_points),
        report=shared_report(session, job, kept, prices) if kinds & REPORTED else None,
    )


def version(session: Session, job_id: str) -> str:
    """Return what differs between any two snapshots of the job that differ; raises NotFound.

    Of one release, and at the same prices.
    """
    return f"{queries.job_row(session, job_id).version}-{events.newest_of(session, job_id)}"


def _changes(session: Session, job_id: str, since: int) -> Sequence[EventRow]:
    behind = select(EventRow).where(EventRow.job_id == job_id, EventRow.id > since)
    return session.scalars(behind.order_by(EventRow.id).limit(_MAX_CHANGES + 1)).all()


def _takes_back(row: EventRow) -> bool:
    return row.data.get("state") in _RESET_IN or (row.kind == EventKind.STAGE_CLOSED and row.data["num_steps"] == 0)


def _stages(changed: Iterable[EventRow]) -> set[tuple[str, int]]:
    return {(row.data["trial_id"], row.data["stage"]) for row in changed if "stage" in row.data}


def _series(session: Session, trials: Sequence[TrialRow], *, max_points: int) -> tuple[Series, ...]:
    return tuple(
        series for name in _DRAWN for series in queries.series_of_each(session, trials, name, max_points=max_points)
    )


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
