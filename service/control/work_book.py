"""The unfinished jobs, for the reconciler: what it has to look after, and its actions on jobs without an attempt."""

from contextlib import suppress

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from service.control import extensions, jobs, queries
from service.control.database.session import Database
from service.control.models import AttemptRow, JobRow, StreamRow
from service.control.queue.waiting import Backlog, WaitingList
from service.control.work import Work, work_of
from service.errors import NotFound
from service.job.states import ACTIVE, JobState
from service.wire.jobs import JobView


class WorkBook:
    """Reads the unfinished jobs, and acts on them. Thread-safe; available as `Store.work`."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._waiting = WaitingList(db)

    def owned(self) -> tuple[Work, ...]:
        """Return the jobs that the reconciler owns besides the queue, oldest first: active, or paused for too long."""
        active = [state.value for state in JobState if state in ACTIVE]
        is_overdue = (JobRow.state == JobState.PAUSED.value) & (JobRow.deadline < self._db.now())
        is_heard = exists().where(StreamRow.job_id == JobRow.id, StreamRow.number == JobRow.attempt)
        query = (
            select(JobRow, AttemptRow, is_heard)
            .outerjoin(AttemptRow, (AttemptRow.job_id == JobRow.id) & (AttemptRow.number == JobRow.attempt))
            .where(JobRow.state.in_(active) | is_overdue)
            .order_by(JobRow.id)
        )
        with self._db.reading() as session:
            return tuple(work_of(job, attempt, is_heard=heard) for job, attempt, heard in session.execute(query))

    def backlog(self) -> Backlog:
        """Return the input of the queue's decision."""
        return self._waiting.backlog(now=self._db.now())

    def is_busy(self) -> bool:
        """Return whether any job waits or runs."""
        states = [state.value for state in (JobState.QUEUED, *ACTIVE)]
        with self._db.reading() as session:
            return session.scalar(select(JobRow.id).where(JobRow.state.in_(states)).limit(1)) is not None

    def fail_waiting(self, job_id: str, *, state: JobState, deadline: float | None, reason: str) -> JobView:
        """Fail a job that waits for an attempt or its user, if it is still in `state` with the same deadline.

        A job whose extension waits has its result, and is not extended instead. Otherwise do nothing. The deadline
        shows whether the job has left the state and returned.
        """

        def fail(_: Session, job: JobRow) -> None:
            if (job.job_state, job.deadline) != (state, deadline):
                return
            now = self._db.now()
            if job.extends:
                extensions.take_back(job, reason=f"its extension did not begin: {reason}", now=now)
            else:
                jobs.transition(job, JobState.FAILED, now=now, reason=reason)

        jobs.on_job(self._db, job_id, fail)
        with self._db.reading() as session:
            return queries.job_view(queries.job_row(session, job_id))

    def move_deadline(self, job_id: str, *, state: JobState, deadline: float | None, to: float) -> None:
        """Move the deadline of a job that is still in `state` with the same one. Do nothing if it is deleted."""

        def move(_: Session, job: JobRow) -> None:
            if (job.job_state, job.deadline) == (state, deadline):
                jobs.move_deadline(job, to)

        with suppress(NotFound):
            jobs.on_job(self._db, job_id, move)

    def explain(self, job_id: str, *, state: JobState, reason: str) -> None:
        """Set the reason why the job is still in `state`. Do nothing if it has left it, or is deleted."""

        def explain(_: Session, job: JobRow) -> None:
            if job.job_state is state:
                jobs.explain(job, reason)

        with suppress(NotFound):
            jobs.on_job(self._db, job_id, explain)
