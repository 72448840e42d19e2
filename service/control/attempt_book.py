"""The attempts of all jobs: their drivers' requests and reports, and the reconciler's actions on them."""

import hmac
from collections.abc import Callable, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.control import attempts, jobs, queries, starting_weights, sweeps
from service.control.access import keys
from service.control.database.session import Database
from service.control.ingest import Ingest
from service.control.models import AttemptRow, JobRow
from service.control.queue import waiting
from service.control.queue.capacity import Node, Shape
from service.control.queue.queued import Start
from service.control.storage import Storage
from service.control.storage_mark import StorageMark
from service.control.work import Attempt, Work, attempt_of, work_of
from service.errors import NotFound
from service.settings import Settings
from service.wire.jobs import JobView
from service.wire.records import Acknowledgement, AttemptBrief, Batch
from service.wire.stored import stored_spec
from service.wire.trials import AttemptView


class AttemptBook:
    """Reads and writes the attempts of all jobs. Thread-safe; available as `Store.attempts`."""

    def __init__(
        self,
        db: Database,
        storage: Storage,
        settings: Settings,
        *,
        secret: bytes,
        note_batch: Callable[[Batch], None],
    ) -> None:
        self._db, self._storage, self._settings = db, storage, settings
        self._secret, self._note_batch = secret, note_batch
        name, is_apart = keys.storage_id(secret), bool(settings.storage_url)
        #: The mark by which machines tell the storage from a folder of their own.
        self.mark = StorageMark(db, storage, name=name, is_remembered=is_apart)

    # Requests and reports of drivers

    def token(self, job_id: str, number: int | str) -> str:
        """Return the token of attempt `number` for its reports."""
        return keys.attempt_token(self._secret, job_id, number)

    def check_token(self, job_id: str, number: int | str, token: str) -> bool:
        """Return whether `token` is that attempt's. An ended attempt passes, and its call then raises Fenced."""
        return hmac.compare_digest(self.token(job_id, number).encode(), token.encode())

    def brief(self, job_id: str, number: int) -> AttemptBrief:
        """Return the brief of attempt `number`. Raises Fenced if it does not own the job, and UnreadableJob."""
        settings = self._settings
        with self._db.reading() as session:
            job = queries.job_row(session, job_id)
            attempt = attempts.require_owner(session, job, number)
            return AttemptBrief(
                job_id=job_id,
                number=number,
                spec=stored_spec(job_id, job.spec),
                storage_url=self._storage.attempt_url(job_id, number),
                storage_mark=self.mark.url,
                lease_s=settings.lease_s,
                renew_s=settings.renew_s,
                max_silence_s=settings.max_silence_s,
                control=attempts.control(job),
                trials=attempts.resume_points(session, job),
                trials_at_once=attempt.trials,
                num_workers=attempts.num_workers(job, attempt),
                seen=sweeps.seen(session, job, list(map(queries.trial_view, queries.trials(session, job_id)))),
                starting_weights=starting_weights.kept(job, self._storage),
            )

    def ingest(self, job_id: str, number: int, batch: Batch) -> Acknowledgement:
        """Store a batch exactly once. Raises as `Ingest.take` does."""

        def take(session: Session, job: JobRow) -> tuple[Acknowledgement, bool]:
            settings = self._settings
            ingest = Ingest(
                session=session,
                job=job,
                number=number,
                now=self._db.now(),
                lease_s=settings.lease_s,
                max_attempts=settings.max_attempts,
                storage=self._storage,
            )
            return ingest.take(batch)

        acknowledgement, is_new = jobs.on_job(self._db, job_id, take)
        if is_new:
            self._note_batch(batch)
        return acknowledgement

    def renew(self, job_id: str, number: int, *, held_s: float = 0.0) -> Acknowledgement:
        """Extend the attempt's lease. Raises Fenced. The answer's sequence is 0, as no batch was sent.

        `held_s` is how long the attempt's driver has lived. It stops a job that has held its workers to its limit.
        """

        def renew(session: Session, job: JobRow) -> Acknowledgement:
            attempt, now = attempts.require_owner(session, job, number), self._db.now()
            attempt.lease_expires = now + self._settings.lease_s
            attempts.hold(job, attempt, held_s, now=now)
            return Acknowledgement(sequence=0, control=attempts.control(job))

        return jobs.on_job(self._db, job_id, renew)

    # Reads

    def one(self, job_id: str, number: int | None = None) -> Attempt:
        """Return an attempt of the job, by default the last; raises NotFound."""
        with self._db.reading() as session:
            job = queries.job_row(session, job_id)
            row = session.get(AttemptRow, (job_id, job.attempt if number is None else number))
            if row is None:
                made = f"its last is {job.attempt}" if job.attempt else "it has not had any yet"
                raise NotFound(f"job `{job_id}` has no {'' if number is None else 'such '}attempt: {made}")
            return attempt_of(row)

    def of_job(self, job_id: str) -> tuple[AttemptView, ...]:
        """Return the job's lives on the cluster, oldest first; raises NotFound."""
        with self._db.reading() as session:
            queries.job_row(session, job_id)
            query = select(AttemptRow).where(AttemptRow.job_id == job_id).order_by(AttemptRow.number)
            return tuple(map(queries.attempt_view, session.scalars(query)))

    def without_log(self) -> tuple[Attempt, ...]:
        """Return the attempts, live or ended, whose log is not yet completely saved from Ray."""
        query = select(AttemptRow).where(AttemptRow.log_kept.is_(False))
        with self._db.reading() as session:
            return tuple(attempt_of(row) for row in session.scalars(query))

    def note_log(self, job_id: str, number: int) -> None:
        """Record that Ray has nothing more of the attempt's log."""

        def note(session: Session, _: JobRow) -> None:
            session.get_one(AttemptRow, (job_id, number)).log_kept = True

        jobs.on_job(self._db, job_id, note)

    def last_checkpoints(self, job_id: str) -> list[str]:
        """Return the checkpoint from which each unfinished trial resumes, if it has one. Raises NotFound."""
        with self._db.reading() as session:
            unfinished = (trial for trial in queries.trials(session, job_id) if trial.outcome is None)
            resumes = [attempts.resume_of(session, trial) for trial in unfinished]
        return [str(resume["checkpoint"]) for resume in resumes if resume and "checkpoint" in resume]

    # Actions of the reconciler

    def begin(self, job_id: str, start: Start | None = None, nodes: Sequence[Node] = ()) -> Work:
        """Start the queued job's next attempt, as the queue decided; None: in any case, one training run at a time.

        Raises IllegalTransition when it is not queued any more, or another replica has taken the room since.
        """

        def begin(session: Session, job: JobRow) -> Work:
            size, trials = (Shape.of_json(job.spec).one, 1) if start is None else (start.size, start.trials)
            if start is not None:
                waiting.require_room(session, start, nodes)
            now, lease_s = self._db.now(), self._settings.lease_s
            return work_of(job, attempts.begin(session, job, size, trials=trials, now=now, lease_s=lease_s))

        return jobs.on_job(self._db, job_id, begin)

    def preempt(self, job_id: str, *, by: str) -> None:
        """Pause a running job for the job `by`. It queues again by itself. Do nothing if either job has moved on."""

        def preempt(session: Session, job: JobRow) -> None:
            attempts.preempt(job, queries.job_row(session, by), now=self._db.now())

        jobs.on_job(self._db, job_id, preempt)

    def regroup(self, job_id: str) -> None:
        """Pause a running job briefly, so that it resumes with more workers. Do nothing if it no longer runs."""

        def regroup(session: Session, job: JobRow) -> None:
            attempts.regroup(job, now=self._db.now())

        jobs.on_job(self._db, job_id, regroup)

    def lose(self, job_id: str, number: int, *, reason: str) -> JobView:
        """End attempt `number` for `reason`. The job queues again, fails, or becomes cancelled.

        Does nothing if the attempt has ended by itself, or another has begun.
        """

        def lose(session: Session, job: JobRow) -> None:
            if job.attempt == number:
                limit = self._settings.max_attempts
                attempts.lose(session, job, reason=reason, now=self._db.now(), max_attempts=limit)

        jobs.on_job(self._db, job_id, lose)
        with self._db.reading() as session:
            row = queries.job_row(session, job_id)
            return queries.shown_job(session, row, max_attempts=self._settings.max_attempts)
