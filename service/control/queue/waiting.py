"""The waiting jobs in memory, kept up to date by events: with ten thousand of them, only changes are read."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pydantic import ValidationError
from sqlalchemy import Row, case, func, select
from sqlalchemy.orm import Session

from service.control import events, extensions, queries
from service.control.database.session import Database
from service.control.models import AttemptRow, EventRow, JobRow, TrialRow
from service.control.queue import quotas
from service.control.queue.capacity import NO_SHAPE, Node, Shape, Size
from service.control.queue.plan import ends_by, fits_beside, with_more_trials
from service.control.queue.queued import QuotaKey, Running, Start, Waiting
from service.errors import IllegalTransition
from service.job.parts import Checkpointing
from service.job.priority import Priority
from service.job.states import ACTIVE, JobState
from service.wire.events import EventKind
from service.wire.queue import QuotaLimits
from service.wire.stored import unread_fields

_COLUMNS = (
    JobRow.id, JobRow.name, JobRow.owner, JobRow.project, JobRow.priority, JobRow.spec, JobRow.queued_at,
    JobRow.not_before, JobRow.deadline, JobRow.attempt, JobRow.reason, JobRow.preempted_by, JobRow.before_extension,
)  # fmt: skip
#: How many of a job's trials have finished.
_FINISHED = case(
    (
        JobRow.attempt > 0,
        select(func.count()).where(TrialRow.job_id == JobRow.id, TrialRow.outcome.is_not(None)).scalar_subquery(),
    ),
    else_=0,
).label("finished")
_CHANGES = (EventKind.JOB.value, EventKind.JOB_DELETED.value)
_MAX_CHANGES = 500  # with more events, all jobs are read again
_LOCK = 8472  # any number that every release agrees on, other than those of events and migrations
_LEAVING = (JobState.PAUSING, JobState.STOPPING, JobState.CANCELLING)


class Backlog(NamedTuple):
    """A consistent snapshot of the facts by which the queue is decided."""

    waiting: tuple[Waiting, ...]
    running: tuple[Running, ...]
    quotas: dict[QuotaKey, QuotaLimits]
    recent: dict[str, Size]


EMPTY = Backlog((), (), {}, {})


class WaitingList:
    """The list of waiting jobs. Thread-safe."""

    def __init__(self, db: Database) -> None:
        self._db, self._lock = db, threading.Lock()
        self._cursor = -1  # the newest event that is in; -1: nothing is
        self._known: dict[str, Waiting] = {}
        self._waiting: tuple[Waiting, ...] = ()  # the same object until something changes

    def backlog(self, *, now: float) -> Backlog:
        """Return the current queue. Raises Unavailable."""
        with self._lock, self._db.reading() as session:
            self._catch_up(session)
            return Backlog(
                self._waiting, running(session, now=now), quotas.limits(session), quotas.recent(session, now=now)
            )

    def _catch_up(self, session: Session) -> None:
        oldest, newest = events.bounds(session)
        changed: Sequence[str] | None = None
        if self._cursor >= 0 and oldest <= self._cursor + 1:
            behind = select(EventRow.job_id).where(EventRow.id > self._cursor, EventRow.kind.in_(_CHANGES))
            changed = session.scalars(behind.order_by(EventRow.id).limit(_MAX_CHANGES + 1)).all()
        is_waiting = select(*_COLUMNS, _FINISHED).where(JobRow.state == JobState.QUEUED.value)
        if changed is None or len(changed) > _MAX_CHANGES:
            self._known = _by_id(session, session.execute(is_waiting))
            self._waiting = tuple(self._known.values())
        elif changed:
            for job_id in changed:
                self._known.pop(job_id, None)
            of_changed = is_waiting.where(JobRow.id.in_(dict.fromkeys(changed)))
            self._known |= _by_id(session, session.execute(of_changed))
            self._waiting = tuple(self._known.values())
        self._cursor = newest


def _by_id(session: Session, rows: Iterable[Row[Any]]) -> dict[str, Waiting]:
    return {row.id: _waiting(row, _finished(session, row)) for row in rows}


def _finished(session: Session, row: Row[Any]) -> int:
    """Return how many of the waiting job's trials train no more."""
    if row.before_extension is None:
        return int(row.finished)
    return len(extensions.finished(session, session.get_one(JobRow, row.id), queries.trials(session, row.id)))


def _waiting(row: Row[Any], finished: int) -> Waiting:
    try:
        shape, unreadable = Shape.of_json(row.spec).without_finished(finished), ""
    except ValidationError:  # of another release
        shape, unreadable = NO_SHAPE, unread_fields(row.spec)
    return Waiting(
        job_id=row.id,
        name=row.name,
        owner=row.owner,
        project=row.project,
        priority=Priority(row.priority),
        shape=shape,
        queued_at=row.queued_at,
        not_before=row.not_before,
        deadline=row.deadline,
        seconds=row.spec["budget"].get("seconds"),
        attempt=row.attempt,
        reason=row.reason,
        preempted_by=row.preempted_by,
        unreadable=unreadable,
    )


def require_room(session: Session, start: Start, nodes: Sequence[Node]) -> None:
    """Raise IllegalTransition if the job no longer fits. Until the commit, no other replica starts a job."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    session.flush()
    if not fits_beside(start.job, start.size, running(session, now=0.0), nodes, quotas.limits(session)):
        raise IllegalTransition(f"job `{start.job.job_id}` waits on: another replica has started jobs since")


def running(session: Session, *, now: float) -> tuple[Running, ...]:
    """Return every job with an attempt, as the queue sees it."""
    of_job = JobRow.id, JobRow.owner, JobRow.project, JobRow.priority, JobRow.state, JobRow.spec
    query = (
        select(*of_job, AttemptRow, _FINISHED)
        .join(AttemptRow, (AttemptRow.job_id == JobRow.id) & (AttemptRow.number == JobRow.attempt))
        .where(JobRow.state.in_([state.value for state in ACTIVE]))
        .order_by(JobRow.id)
    )
    return tuple(_running(row, now=now) for row in session.execute(query))


def _running(row: Any, *, now: float) -> Running:
    """Return the running job. If this release cannot read it, only its attempt's size is known."""
    attempt: AttemptRow = row.AttemptRow
    state = JobState(row.state)
    job = Running(
        job_id=row.id,
        owner=row.owner,
        project=row.project,
        priority=Priority(row.priority),
        size=_given(attempt) or Size(),
        began_at=attempt.began_at,
        may_pause=state is JobState.RUNNING,
        is_leaving=state in _LEAVING,
    )
    try:
        shape = Shape.of_json(row.spec)
        spacing_s = Checkpointing.model_validate(row.spec.get("checkpoint", {})).every_seconds
    except ValidationError:
        return job
    trials, seconds = attempt.trials or 1, row.spec["budget"].get("seconds")
    size = shape.one if (given := _given(attempt)) is None else shape.sized(given)
    # Both bounds hold. The first stands still; the second knows that most trials of a resumed job have finished.
    rest = shape.without_finished(row.finished)
    by_all = ends_by(seconds, shape, trials, began_at=attempt.began_at)
    by_rest = ends_by(seconds, rest, trials, began_at=now)
    return replace(
        job,
        size=size,
        ends_by=min(by_all, by_rest),
        larger=shape.with_one_more(size, trials) or with_more_trials(rest, trials),
        grows_at=attempt.began_at + spacing_s,
    )


def _given(attempt: AttemptRow) -> Size | None:
    """Return the size of the attempt; None if an earlier release began it."""
    if attempt.cpus is None or attempt.gpus is None or attempt.workers is None:
        return None
    return Size(attempt.cpus, attempt.gpus, attempt.workers)
