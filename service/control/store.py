"""The truth about every job. Synchronous: reads in the caller's thread, writes through one writer thread."""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache, partial

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from search.config import Budget
from service import tracing
from service.control import (
    code,
    events,
    jobs,
    listing,
    messages,
    queries,
    steers,
    transfer,
    verbs,
)
from service.control.access import audit, keys
from service.control.access.keyring import KeyRing
from service.control.access.rules import LOCAL, Owned, Principal, visible_project
from service.control.attempt_book import AttemptBook
from service.control.code import CodeShelf
from service.control.database.session import Database
from service.control.events import KEPT_EVENTS, Bell
from service.control.listing import EVERY_JOB, JobFilter
from service.control.messages import Message
from service.control.metrics import points
from service.control.models import AttemptRow, JobRow, RemovalRow, StreamRow
from service.control.queries import NamedPoint, WorkerSize
from service.control.queue.quotas import QuotaBook
from service.control.queue.waiting import Backlog, WaitingList
from service.control.results import outcomes, snapshots
from service.control.storage import Storage
from service.control.telemetry import Telemetry
from service.control.verbs import Versions
from service.control.work import Work, work_of
from service.errors import CheckpointGone, InvalidRequest, NotFound, Unauthorized, Unavailable
from service.job.problems import Problem
from service.job.spec import JobSpec
from service.job.states import ACTIVE, JobState, Verb
from service.log_lines import log_fields
from service.settings import Settings
from service.wire.access import NewKey, Role
from service.wire.base import MAX_PAGE
from service.wire.comparison import Comparison
from service.wire.events import EventKind, EventPage
from service.wire.jobs import JobEdit, JobOrder, JobPage, JobView
from service.wire.reports import JobReport, Prices
from service.wire.snapshot import Snapshot
from service.wire.steering import SteeringView, SteerRequest
from service.wire.trials import ScheduleView, Series, StageView, TrialView

_log = logging.getLogger(__name__)
_MAX_OWNERS = 4096  # kept in memory
_REMEMBERED_S = 3600.0  # a deleted job whose driver had to be killed: what that one left is found in the meantime


class Store:
    """Jobs, what was reported of them, attempts, and keys. Thread-safe; opened with `Store.open`."""

    def __init__(
        self, settings: Settings, db: Database, storage: Storage, *, telemetry: Telemetry, secret: bytes
    ) -> None:
        self.settings = settings
        self._db = db
        #: Where the files of jobs, and their code, are.
        self.storage = storage
        self.telemetry = telemetry
        self._left_over: set[str] = set()  # deleted jobs whose folders storage did not remove
        self._removed: set[str] = set()  # and those whose folders it did
        self.keyring = KeyRing(db)
        self.quotas = QuotaBook(db)
        #: What their drivers ask and report, and what the reconciler does to them.
        self.attempts = AttemptBook(db, storage, settings, secret=secret, note_batch=telemetry.note_batch)
        self._waiting = WaitingList(db)
        self.code = CodeShelf(db, storage, max_packages=settings.code_packages)
        #: Whose job it is, by its id; raises NotFound. Asked by every request, and never another.
        self.owner_of = lru_cache(_MAX_OWNERS)(self._owner_of)

    @classmethod
    def open(cls, settings: Settings, *, clock: Callable[[], float] = time.time) -> "Store":
        """Open the database of `settings`, made and migrated as needed; raises Unavailable as `Database.open`."""
        telemetry = Telemetry()
        db = Database.open(settings, clock=clock, note_group=telemetry.note_group)
        with ExitStack() as opened:
            opened.callback(db.close)
            telemetry.watch(db)
            secret = keys.server_secret(settings.state_dir)
            store = cls(settings, db, Storage(settings.resolved_storage_url), telemetry=telemetry, secret=secret)
            opened.pop_all()
        return store

    def close(self) -> None:
        """Store what waits and give the database back, also where the former raises Unavailable."""
        self._db.close()

    def answer(self) -> None:
        """Return if the database has its tables, none of a newer release, and answers; raises Unavailable."""
        self._db.answer()

    @property
    def failed_at(self) -> float:
        """The time of the last failure of the database, in seconds since the epoch; -inf: there was none."""
        return self._db.failed_at

    # Users

    def add_job(
        self,
        spec: JobSpec,
        *,
        idempotency_key: str | None = None,
        source: str | None = None,
        request: str | None = None,
        by: Principal = LOCAL,
    ) -> tuple[JobView, bool]:
        """Queue a job of `by`, a clone of `source` if one is given; the flag says whether it is new.

        A known key of theirs gives its first job again. `request` is a digest of how a clone was asked for.

        Raises KeyReused when the key made another job, UnreadableJob when that cannot be told; InvalidJob when it
        cannot learn from a job that it names, or its project has no such code as it names; QueueFull when a quota lets
        no more jobs wait.
        """

        def add(session: Session) -> tuple[JobView, bool]:
            now = self._db.now()
            kept_s = self.settings.idempotency_s
            how = {"key": idempotency_key, "source": source, "request": request}
            quotas = self.quotas.limits()
            job, created = jobs.add(session, spec, by=by, now=now, key_s=kept_s, quotas=quotas, **how)
            if created:
                audit.add(session, by, "createJob", job.id, now=now)
            return queries.job_view(job, spec if created else None), created

        view, created = self._db.write(add)
        if created:
            tracing.begin_job(view.id)
            with log_fields(job=view.id):
                _log.info("job %s is submitted", view.id)
        return view, created

    def made_with(
        self,
        key: str | None,
        *,
        by: Principal,
        spec: JobSpec | None = None,
        source: str | None = None,
        request: str | None = None,
    ) -> JobView | None:
        """Return the job that `by` made with a key from the same `spec` and `source`, or by the same `request`.

        None: there is no such job, or only `add_job` can tell. Raises KeyReused and UnreadableJob as that does.
        """
        if key is None:
            return None
        now, kept_s = self._db.now(), self.settings.idempotency_s
        with self._db.reading() as session:
            first = jobs.made_with(
                session, key, by=by, spec=spec, source=source, request=request, now=now, key_s=kept_s
            )
            return None if first is None else queries.job_view(first)

    def prior_jobs(self, spec: JobSpec, *, by: Principal = LOCAL) -> dict[str, tuple[str, ...]]:
        """Return the past jobs that each arm with `transfer` would learn from; raises InvalidJob as `add_job` does."""
        with self._db.reading() as session:
            found = transfer.priors(session, spec, project=visible_project(by))
        return {arm: tuple(search.job for search in prior.searches) for arm, prior in found.items()}

    def require_code(self, spec: JobSpec, *, by: Principal = LOCAL) -> None:
        """Raise InvalidJob where the project of `by` has no such code as the job names."""
        with self._db.reading() as session:
            code.require(session, spec, project=by.project)

    def job(self, job_id: str) -> JobView:
        """Return one job; raises NotFound."""
        with self._db.reading() as session:
            return queries.job_view(queries.job_row(session, job_id))

    def worker_sizes(self, job_ids: Collection[str]) -> dict[str, WorkerSize]:
        """Return the size of the workers of each of these jobs that there is."""
        with self._db.reading() as session:
            return queries.worker_sizes(session, job_ids)

    def version(self, job_id: str) -> int:
        """Return the version of one job, and read no more of it; raises NotFound."""
        with self._db.reading() as session:
            return queries.version(session, job_id)

    def _owner_of(self, job_id: str) -> Owned:
        with self._db.reading() as session:
            found = session.execute(select(JobRow.owner, JobRow.project).where(JobRow.id == job_id)).one_or_none()
        if found is None:
            raise queries.no_job(job_id)
        return Owned(*found)

    def jobs(
        self,
        where: JobFilter = EVERY_JOB,
        *,
        order: JobOrder = JobOrder.CREATED_DOWN,
        limit: int = 50,
        cursor: str | None = None,
        count: bool = False,
        with_progress: bool = False,
        by: Principal = LOCAL,
    ) -> JobPage:
        """Return a page of the jobs that `by` sees, in `order`.

        Raises InvalidRequest for a cursor or limit that it cannot use.
        """
        project = visible_project(by)
        with self._db.reading() as session:
            return listing.page(
                session,
                where,
                project=project,
                order=order,
                limit=limit,
                cursor=cursor,
                count=count,
                with_progress=with_progress,
            )

    def trials(self, job_id: str) -> tuple[TrialView, ...]:
        """Return the job's trials, in its order."""
        with self._db.reading() as session:
            return tuple(queries.trial_view(trial) for trial in queries.trials(session, job_id))

    def stages(
        self,
        job_id: str,
        *,
        trial_id: str | None = None,
        numbers: Collection[int] = (),
        with_posterior: bool = False,
    ) -> tuple[StageView, ...]:
        """Return the decided stages, trial by trial, each with its probes, and its posterior if asked for.

        `numbers` are those of the stages that are wanted; empty: all.
        """
        with self._db.reading() as session:
            found = queries.trials(session, job_id, trial_id=trial_id)
            return queries.decided_stages(session, found, numbers=numbers, with_posterior=with_posterior)

    def series(
        self,
        job_id: str,
        name: str,
        *,
        trial_id: str | None = None,
        max_points: int = 2000,
        within: points.Steps = points.EVERY_STEP,
    ) -> tuple[Series, ...]:
        """Return one series per trial, thinned to `max_points`, extremes kept; raises NotFound for an unknown name.

        `within` are the steps that are wanted; raises InvalidRequest where the last of them is below the first.
        """
        if max_points < 2:
            message = "`max_points` is at least 2"
            raise InvalidRequest([Problem(pointer="/max_points", message=message, value=max_points)])
        if within.last < within.first:
            message = f"`last_step` is at least `first_step`, which is {within.first}, got {within.last}"
            raise InvalidRequest([Problem(pointer="/last_step", message=message, value=within.last)])
        with self._db.reading() as session:
            found = queries.trials(session, job_id, trial_id=trial_id)
            queries.require_series(session, found, name)
            return tuple(queries.series(session, trial, name, max_points=max_points, within=within) for trial in found)

    def schedules(self, job_id: str, *, arm: str | None = None, seed: int | None = None) -> tuple[ScheduleView, ...]:
        """Return the learned schedules of the trials that match, with where they are from; else what is decided."""
        with self._db.reading() as session:
            found = queries.trials(session, job_id)
            matching = [trial for trial in found if arm in (None, trial.arm) and seed in (None, trial.seed)]
            return outcomes.recorded_schedules(session, job_id, matching)

    def points(self, trial_id: str) -> Iterator[NamedPoint]:
        """Yield every point of a trial's series, by name and step; none is thinned out.

        Some thousand are read at a time, each time in a session of its own: whoever takes them slowly holds none.
        """
        with self._db.reading() as session:
            names = queries.series_names(session, trial_id)
        for name in names:
            step = -1
            while found := self._points_beyond(step, trial_id, name):
                yield from found
                step = found[-1].step

    def _points_beyond(self, step: int, trial_id: str, name: str) -> list[NamedPoint]:
        with self._db.reading() as session:
            return queries.points_beyond(session, step, trial_id, name)

    def report(self, job_id: str) -> JobReport:
        """Return what every trial and arm of the job came to."""
        with self._db.reading() as session:
            queries.job_row(session, job_id)
            return outcomes.report(session, job_id, self._prices)

    def comparison(self, job_ids: Sequence[str]) -> Comparison:
        """Return the jobs side by side: where they differ, and what came of that; raises NotFound."""
        with self._db.reading() as session:
            return outcomes.compared(session, job_ids)

    def snapshot(self, job_id: str, *, since: int | None = None, max_points: int = 1000) -> Snapshot:
        """Return all that the job's page shows, or what changed of it behind the event `since`; of one moment."""
        with self._db.reading() as session:
            return snapshots.snapshot(session, job_id, since=since, max_points=max_points, prices=self._prices)

    @property
    def _prices(self) -> Prices | None:
        hour, gigabyte = self.settings.price_worker_hour, self.settings.price_gb
        if hour is None and gigabyte is None:
            return None
        return Prices(worker_hour=hour, gb=gigabyte, currency=self.settings.price_currency)

    def snapshot_version(self, job_id: str) -> str:
        """Return what differs between any two snapshots of the job that differ; raises NotFound."""
        with self._db.reading() as session:
            return snapshots.version(session, job_id)

    # Events

    @property
    def bell(self) -> Bell:
        """Rings after each commit of this process that has events."""
        return self._db.bell

    def newest_event(self) -> int:
        """Return the id of the newest event; 0: there is none."""
        with self._db.reading() as session:
            return events.bounds(session)[1]

    def events(
        self,
        after: int,
        *,
        limit: int = MAX_PAGE,
        project: str | None = None,
        job_id: str | None = None,
        kinds: Collection[EventKind] = (),
    ) -> EventPage:
        """Return up to `limit` events behind the id `after`, oldest first; raises NotFound for a job that is not."""
        with self._db.reading() as session:
            if job_id is not None:
                queries.job_row(session, job_id, project=project)
            rows, following = events.after(session, after, limit=limit, project=project, job_id=job_id, kinds=kinds)
            views = tuple(map(queries.event_view, rows))
            return EventPage(events=views, next_after=following, gap=events.is_gap(session, after, kinds))

    def prune_events(self, *, kept: int = KEPT_EVENTS) -> None:
        """Delete old events once there are a tenth more than `kept`."""
        with self._db.reading() as session:
            oldest, newest = events.bounds(session)
        if newest - oldest > 1.1 * kept:
            self._db.write(partial(events.prune, kept=kept))

    # What is out of date

    def remove_expired(self, now: float) -> None:
        """Delete old events, idempotency keys and audit entries, and the files of deleted jobs and code.

        Raises Unavailable.
        """
        self.prune_events()
        expired = now - self.settings.idempotency_s
        with self._db.reading() as session:
            has_expired = jobs.has_keys(session, before=expired)
            removals = session.execute(select(RemovalRow.job_id, RemovalRow.created_at)).all()
        if has_expired:
            self._db.write(partial(jobs.forget_keys, before=expired))
        self._forget_audit(now)
        ordered = {job_id for job_id, _ in removals}  # another replica may have forgotten others
        self._removed &= ordered
        self._left_over &= ordered
        for job_id, deleted_at in removals:
            is_over = now >= deleted_at + _REMEMBERED_S
            if (is_over or job_id not in self._removed) and self._has_removed(job_id) and is_over:
                self._db.write(partial(jobs.forget_removal, job_id=job_id))
        self.code.remove_expired()

    def _forget_audit(self, now: float) -> None:
        if self.settings.audit_days is None:
            return
        before = now - self.settings.audit_days * 86_400.0
        with self._db.reading() as session:
            is_due = audit.is_older(session, than=before)
        if is_due:
            self._db.write(partial(audit.forget, before=before))

    def _has_removed(self, job_id: str) -> bool:
        """Remove the folder of a deleted job; tell once of one that cannot be removed, which is tried again."""
        try:
            self.storage.remove_job(job_id)
        except Unavailable as error:
            if job_id not in self._left_over:
                _log.warning("the folder of the deleted job %s stays for now: %s", job_id, error)
            self._left_over.add(job_id)
            return False
        self._left_over.discard(job_id)
        self._removed.add(job_id)
        return True

    def deleted_at(self, job_id: str) -> float | None:
        """Return when a job was deleted, in seconds since the epoch; None: it was not, or longer than an hour ago."""
        with self._db.reading() as session:
            return session.scalar(select(RemovalRow.created_at).where(RemovalRow.job_id == job_id))

    # Messages that a job is over

    def due_messages(self) -> list[Message]:
        """Return the messages whose turn it is; a caller that does not `note_message` leaves them to a later one."""
        now = self._db.now()
        with self._db.reading() as session:
            if not messages.are_due(session, now=now):
                return []
        return self._db.write(partial(messages.claim, now=now))

    def note_message(self, message_id: str, *, fault: str, is_final: bool) -> bool:
        """Note what came of sending a message, "": it arrived; return whether it is sent again."""
        return self._db.write(partial(messages.note, message_id=message_id, fault=fault, is_final=is_final))

    # Verbs: each raises PreconditionFailed where the job is in none of the `versions` that its user has seen

    def pause(self, job_id: str, *, versions: Versions = None, by: Principal = LOCAL) -> JobView:
        """Hold a queued job back, or have a live one checkpoint and give its resources back."""
        return self._ask(job_id, Verb.PAUSE, verbs.pause, versions, by)

    def resume(
        self, job_id: str, *, workers: int | None = None, versions: Versions = None, by: Principal = LOCAL
    ) -> JobView:
        """Queue a paused job where it was; `workers` is as in `retry`."""
        return self._ask(job_id, Verb.RESUME, partial(verbs.resume, workers=workers), versions, by)

    def stop(self, job_id: str, *, versions: Versions = None, by: Principal = LOCAL) -> JobView:
        """Have a job that has run end as if its budget were spent."""
        return self._ask(job_id, Verb.STOP, verbs.stop, versions, by)

    def cancel(self, job_id: str, *, versions: Versions = None, by: Principal = LOCAL) -> JobView:
        """End a job that waits, or have a live one stop."""
        return self._ask(job_id, Verb.CANCEL, verbs.cancel, versions, by)

    def retry(
        self, job_id: str, *, workers: int | None = None, versions: Versions = None, by: Principal = LOCAL
    ) -> JobView:
        """Queue a failed or cancelled job again; raises CheckpointGone where it could not go on.

        `workers` is the number that each run goes on with, None: as before; raises InvalidJob for one it cannot have.
        """
        self._require_checkpoints(job_id, Verb.RETRY, versions)
        return self._ask(job_id, Verb.RETRY, partial(verbs.retry, workers=workers), versions, by)

    def extend(
        self,
        job_id: str,
        caps: Budget,
        *,
        workers: int | None = None,
        versions: Versions = None,
        by: Principal = LOCAL,
    ) -> JobView:
        """Queue a finished job again with larger caps; raises CheckpointGone, and InvalidJob for caps that are not.

        `workers` is as in `retry`.
        """
        self._require_checkpoints(job_id, Verb.EXTEND, versions)
        return self._ask(job_id, Verb.EXTEND, partial(verbs.extend, caps=caps, workers=workers), versions, by)

    def steer(self, job_id: str, asked: SteerRequest, *, versions: Versions = None, by: Principal = LOCAL) -> JobView:
        """Say what a job's controllers may use from their next stage on; raises InvalidJob for what they cannot."""
        return self._ask(job_id, Verb.STEER, partial(verbs.steer, asked=asked, by=by), versions, by)

    def steering(self, job_id: str) -> SteeringView:
        """Return what people said of the job's controllers, and what they may steer; raises NotFound."""
        with self._db.reading() as session:
            return steers.view(session, job_id)

    def edit(self, job_id: str, patch: JobEdit, *, versions: Versions = None, by: Principal = LOCAL) -> JobView:
        """Change labels and notes, or archive a job that is over; raises InvalidJob and IllegalTransition."""

        def edit(session: Session, job: JobRow) -> JobView:
            verbs.require_version(job, versions)
            if jobs.edit(session, job, patch):
                audit.add(session, by, "updateJob", job_id, now=self._db.now())
            return queries.job_view(job)

        return jobs.on_job(self._db, job_id, edit)

    def delete(self, job_id: str, *, versions: Versions = None, by: Principal = LOCAL) -> None:
        """Delete a job that is over with all that is stored of it; `remove_expired` removes its files.

        Raises IllegalTransition for a job that is not over.
        """

        def delete(session: Session, job: JobRow) -> None:
            now = self._db.now()
            verbs.require_version(job, versions)
            jobs.delete(session, job, now=now)
            audit.add(session, by, "deleteJob", job_id, now=now)

        jobs.on_job(self._db, job_id, delete)
        self.owner_of.cache_clear()

    def _ask(self, job_id: str, verb: Verb, act: Callable[..., None], versions: Versions, by: Principal) -> JobView:
        """Do what a user asks for; raises IllegalTransition where the job's state does not allow it."""

        def ask(session: Session, job: JobRow) -> JobView:
            now = self._db.now()
            verbs.require_version(job, versions)
            act(session, job, now=now)
            audit.add(session, by, f"{verb}Job", job_id, now=now)
            return queries.job_view(job)

        return jobs.on_job(self._db, job_id, ask)

    def _require_checkpoints(self, job_id: str, verb: Verb, versions: Versions) -> None:
        """Raise CheckpointGone if one that the job would go on from was removed; storage is asked without a lock."""
        with self._db.reading() as session:
            job = queries.job_row(session, job_id)
            verbs.require_version(job, versions)
            verbs.require_allowed(job, verb)
            needed = verbs.checkpoints(session, job)
        for url in needed:
            if not self.storage.has(job_id, url):
                raise CheckpointGone(
                    f"{url} is not in the job's folder on storage (any more): clone the job, which begins anew"
                )

    # Keys

    def add_key(self, name: str) -> str:
        """Return a new key of an admin; only its digest is kept, so it cannot be shown again."""
        return self.keyring.create(NewKey(name=name, role=Role.ADMIN), by=LOCAL).secret

    def adopt_key(self, name: str, secret: str) -> None:
        """Make an admin's key of a `secret` that the operator gives, unless the database has had it."""
        self.keyring.adopt(secret, NewKey(name=name, role=Role.ADMIN), by=LOCAL)

    def check_key(self, key: str) -> bool:
        """Return whether `key` is a user's, and opens anything."""
        try:
            self.keyring.holder(key)
        except Unauthorized:
            return False
        return True

    # What the reconciler owns

    def work(self) -> tuple[Work, ...]:
        """Return every job that the reconciler owns besides the queue, oldest first: active, or paused for too long."""
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
        """Return what the queue is decided from."""
        return self._waiting.backlog(now=self._db.now())

    def is_busy(self) -> bool:
        """Return whether a job waits or runs."""
        states = [state.value for state in (JobState.QUEUED, *ACTIVE)]
        with self._db.reading() as session:
            return session.scalar(select(JobRow.id).where(JobRow.state.in_(states)).limit(1)) is not None

    def fail_waiting(self, job_id: str, *, state: JobState, deadline: float | None, reason: str) -> JobView:
        """Fail a job that waits for an attempt or for its user, as it was seen: in `state`, with that deadline.

        Does nothing when it has left the state since; the deadline tells whether it was there again.
        """

        def fail(_: Session, job: JobRow) -> None:
            if (job.job_state, job.deadline) == (state, deadline):
                jobs.transition(job, JobState.FAILED, now=self._db.now(), reason=reason)

        jobs.on_job(self._db, job_id, fail)
        return self.job(job_id)

    def explain(self, job_id: str, *, state: JobState, reason: str) -> None:
        """Say why the job is still in `state`; nothing if it has left it, or is deleted."""

        def explain(_: Session, job: JobRow) -> None:
            if job.job_state is state:
                jobs.explain(job, reason)

        with suppress(NotFound):
            jobs.on_job(self._db, job_id, explain)
