"""The database's record of every job. Synchronous: reads run in the caller's thread, writes in one writer thread."""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial

from sqlalchemy import select
from sqlalchemy.orm import Session

from search.config import Budget
from search.past_jobs.prior import Prior
from service import tracing
from service.control import code, events, jobs, listing, queries, starting_weights, steers, transfer, verbs
from service.control.access import audit, keys
from service.control.access.keyring import KeyRing
from service.control.access.rules import LOCAL, Owned, Principal, visible_project
from service.control.attempt_book import AttemptBook
from service.control.code import CodeShelf
from service.control.database.session import Database
from service.control.events import Bell
from service.control.expiry import Expiry
from service.control.listing import EVERY_JOB, JobFilter
from service.control.metrics import points
from service.control.models import JobRow, TrialRow
from service.control.outbox import Outbox
from service.control.queries import NamedPoint, WorkerSize
from service.control.queue.quotas import QuotaBook
from service.control.results import outcomes, snapshots
from service.control.results.outcomes import ReportCache
from service.control.storage import Storage
from service.control.telemetry import Telemetry
from service.control.verbs import Versions
from service.control.work_book import WorkBook
from service.errors import CheckpointGone, InvalidRequest, NotFound, Unauthorized
from service.job.problems import Problem
from service.job.spec import JobSpec
from service.job.states import TERMINAL, Verb
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
from service.wire.trials import ScheduleView, Series, SeriesExtent, StageView, TrialView

_log = logging.getLogger(__name__)
_MAX_OWNERS, _MAX_TRIALS, _MAX_REPORTS = 4096, 16_384, 32  # kept in memory


class Store:
    """Jobs, their reports, attempts and keys. Thread-safe; open it with `Store.open`."""

    def __init__(
        self, settings: Settings, db: Database, storage: Storage, *, telemetry: Telemetry, secret: bytes
    ) -> None:
        self.settings = settings
        self._db = db
        #: The files of jobs, and their code.
        self.storage = storage
        self.telemetry = telemetry
        self.keyring = KeyRing(db)
        #: Signs what a browser holds while it signs in at the issuer.
        self.sign_in_key = keys.sign_in_key(secret)
        self.quotas = QuotaBook(db)
        #: Drivers' requests and reports, and the reconciler's actions on attempts.
        self.attempts = AttemptBook(db, storage, settings, secret=secret, note_batch=telemetry.note_batch)
        #: The reconciler's reads of unfinished jobs, and its actions on those without an attempt.
        self.work = WorkBook(db)
        self.outbox = Outbox(db)
        self.code = CodeShelf(db, storage, mark=self.attempts.mark, max_packages=settings.code_packages)
        self.expiry = Expiry(db, storage, settings, self.code, mark=self.attempts.mark)
        self._kept = ReportCache(num_trials=_MAX_TRIALS, num_jobs=_MAX_REPORTS)
        #: The owner of a job by id; raises NotFound. Cached, as every request asks and owners never change.
        self.owner_of = lru_cache(_MAX_OWNERS)(self._owner_of)

    @classmethod
    def open(cls, settings: Settings, *, clock: Callable[[], float] = time.time) -> "Store":
        """Open the database of `settings`, created and migrated as needed. Raises Unavailable as `Database.open`."""
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
        """Store waiting writes and release the database, even if the former raises Unavailable."""
        self._db.close()

    def answer(self) -> None:
        """Raise Unavailable unless the database answers and has the tables of this release or an older one."""
        self._db.answer()

    @property
    def failed_at(self) -> float:
        """The time of the database's last failure, in seconds since the epoch; -inf if there was none."""
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
        """Queue a job of `by`, a clone of `source` if given. The flag says whether it is new.

        A known idempotency key of theirs returns its first job. `request` is a digest of the request for a clone.

        Raises KeyReused when the key made another job, UnreadableJob when that cannot be told; InvalidJob when it
        cannot learn from a job that it names, or its project has no such code, or no such weights, as it names;
        QueueFull when a quota lets no more jobs wait.
        """

        quotas = self.quotas.limits()  # here, as the writer waits for no reader
        priors = self._priors(spec, by=by)  # a past job that is deleted before the write has taught all the same
        best = self._best_trials(spec, by=by)

        def add(session: Session) -> tuple[JobView, bool]:
            now = self._db.now()
            kept_s = self.settings.idempotency_s
            how = {"key": idempotency_key, "source": source, "request": request}
            job, created = jobs.add(
                session, spec, by=by, now=now, key_s=kept_s, quotas=quotas, priors=priors, best=best, **how
            )
            if created:
                audit.add(session, by, "createJob", job.id, now=now)
            return queries.job_view(job, spec) if created else self._shown(session, job), created

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
            return None if first is None else self._shown(session, first)

    def prior_jobs(self, spec: JobSpec, *, by: Principal = LOCAL) -> dict[str, tuple[str, ...]]:
        """Return the past jobs from which each arm with `transfer` would learn. Raises InvalidJob as `add_job` does."""
        found = self._priors(spec, by=by)
        asking = [arm.name for arm in spec.arms if arm.name in found]
        return {arm: tuple(search.job for search in found[arm].searches) for arm in asking}

    def _priors(self, spec: JobSpec, *, by: Principal) -> dict[str, Prior]:
        with self._db.reading() as session:
            return transfer.priors(session, spec, jobs.samples_of(spec), project=visible_project(by))

    def _best_trials(self, spec: JobSpec, *, by: Principal) -> dict[str, str | None]:
        with self._db.reading() as session:
            return starting_weights.best_trials(session, spec, self._kept, project=visible_project(by))

    def require_named(self, spec: JobSpec, *, by: Principal = LOCAL) -> None:
        """Raise InvalidJob as `add_job` does if the job names code or weights that `by` does not have."""
        best = self._best_trials(spec, by=by)
        with self._db.reading() as session:
            code.require(session, spec, project=by.project)
            starting_weights.find(session, spec, project=visible_project(by), best=best, is_write=False)

    def job(self, job_id: str) -> JobView:
        """Return one job; raises NotFound."""
        with self._db.reading() as session:
            return self._shown(session, queries.job_row(session, job_id))

    def _shown(self, session: Session, job: JobRow) -> JobView:
        return queries.shown_job(session, job, max_attempts=self.settings.max_attempts)

    def worker_sizes(self, job_ids: Collection[str]) -> dict[str, WorkerSize]:
        """Return the worker size of each of these jobs that exists."""
        with self._db.reading() as session:
            return queries.worker_sizes(session, job_ids)

    def version(self, job_id: str) -> int:
        """Return the version of one job, without reading the rest. Raises NotFound."""
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
        with_bill: bool = False,
        pointers: Sequence[str] = (),
        by: Principal = LOCAL,
    ) -> JobPage:
        """Return a page of the jobs that `by` sees, in `order`, each with the fields of its spec at `pointers`.

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
                with_bill=with_bill,
                pointers=pointers,
                max_attempts=self.settings.max_attempts,
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
        """Return the decided stages, trial by trial, with their probes, and on request their posteriors.

        `numbers` selects stages (empty: all).
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
        """Return one series per trial, thinned to `max_points` with extremes kept. Raises NotFound for an unknown name.

        `within` limits the steps. Raises InvalidRequest if its last step is below its first.
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

    def series_extents(self, job_id: str, *, trial_id: str | None = None) -> tuple[SeriesExtent, ...]:
        """Return every series of the job's trials, with its number of points and its last one. Raises NotFound."""
        with self._db.reading() as session:
            return queries.series_extents(session, queries.trials(session, job_id, trial_id=trial_id))

    def schedules(self, job_id: str, *, arm: str | None = None, seed: int | None = None) -> tuple[ScheduleView, ...]:
        """Return the learned schedules of matching trials with their provenance; what is decided, if unfinished."""
        with self._db.reading() as session:
            found = queries.trials(session, job_id)
            matching = [trial for trial in found if arm in (None, trial.arm) and seed in (None, trial.seed)]
            return outcomes.recorded_schedules(session, job_id, matching)

    def require_series(self, job_id: str, name: str) -> None:
        """Raise NotFound for a name that no trial of the job reports. A known name may have no points yet."""
        with self._db.reading() as session:
            queries.require_series(session, queries.trials(session, job_id), name)

    def points(self, trial_id: str, *, name: str | None = None, first_step: int = 0) -> Iterator[NamedPoint]:
        """Yield every point of a trial's series, or of the one `name`, by name and step, without thinning.

        Some thousand points are read at a time, each time in a new session, so a slow consumer holds no session open.
        Raises NotFound at the end if the trial was deleted meanwhile, as some of its points are missing.
        """
        with self._db.reading() as session:
            names = queries.series_names(session, trial_id) if name is None else [name]
        for each in names:
            step = first_step - 1
            while found := self._points_beyond(step, trial_id, each):
                yield from found
                step = found[-1].step
        with self._db.reading() as session:
            if session.get(TrialRow, trial_id) is None:
                raise NotFound(f"trial `{trial_id}` was deleted while its points were read")

    def _points_beyond(self, step: int, trial_id: str, name: str) -> list[NamedPoint]:
        with self._db.reading() as session:
            return queries.points_beyond(session, step, trial_id, name)

    def report(self, job_id: str) -> JobReport:
        """Return the job's report: the result of every trial and arm."""
        with self._db.reading() as session:
            queries.job_row(session, job_id)
            return outcomes.report(session, job_id, self._kept, self._prices)

    def comparison(self, job_ids: Sequence[str]) -> Comparison:
        """Compare jobs: their differing fields and their results. Raises NotFound."""
        with self._db.reading() as session:
            return outcomes.compared(session, job_ids, self._kept, self._prices)

    def snapshot(self, job_id: str, *, since: int | None = None, max_points: int = 1000) -> Snapshot:
        """Return a consistent snapshot of all that the job's page shows, or of what changed after the event `since`."""
        with self._db.reading() as session:
            return snapshots.snapshot(
                session,
                job_id,
                since=since,
                max_points=max_points,
                max_attempts=self.settings.max_attempts,
                prices=self._prices,
                kept=self._kept,
            )

    @property
    def _prices(self) -> Prices | None:
        hour, gigabyte = self.settings.price_worker_hour, self.settings.price_gb
        if hour is None and gigabyte is None:
            return None
        return Prices(worker_hour=hour, gb=gigabyte, currency=self.settings.price_currency)

    def snapshot_version(self, job_id: str) -> str:
        """Return a value that differs between any two different snapshots of the job. Raises NotFound."""
        with self._db.reading() as session:
            return snapshots.version(session, job_id)

    # Events

    @property
    def bell(self) -> Bell:
        """Rings after each commit of this process that has events."""
        return self._db.bell

    def newest_event(self) -> int:
        """Return the id of the newest event; 0 if there is none."""
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
        """Return up to `limit` events after the id `after`, oldest first. Raises NotFound for an unknown job."""
        with self._db.reading() as session:
            if job_id is not None:
                queries.job_row(session, job_id, project=project)
            rows, following = events.after(session, after, limit=limit, project=project, job_id=job_id, kinds=kinds)
            views = tuple(map(queries.event_view, rows))
            return EventPage(events=views, next_after=following, gap=events.is_gap(session, after, kinds))

    # Verbs: each raises PreconditionFailed unless the job is in one of the `versions` that its user has seen

    def pause(self, job_id: str, *, versions: Versions = None, by: Principal = LOCAL) -> JobView:
        """Hold back a queued job, or make a running one write a checkpoint and release its resources."""
        return self._ask(job_id, Verb.PAUSE, verbs.pause, versions, by)

    def resume(
        self, job_id: str, *, workers: int | None = None, versions: Versions = None, by: Principal = LOCAL
    ) -> JobView:
        """Queue a paused job at its old place; `workers` is as in `retry`."""
        return self._ask(job_id, Verb.RESUME, partial(verbs.resume, workers=workers), versions, by)

    def stop(self, job_id: str, *, versions: Versions = None, by: Principal = LOCAL) -> JobView:
        """End a job that has run as if its budget were spent."""
        return self._ask(job_id, Verb.STOP, verbs.stop, versions, by)

    def stop_trial(self, job_id: str, trial_id: str, *, versions: Versions = None, by: Principal = LOCAL) -> JobView:
        """End one trial of an unfinished job as if its budget were spent; the others go on. Raises NotFound."""
        return self._ask(job_id, Verb.STOP, partial(verbs.stop_trial, trial_id=trial_id), versions, by, what="Trial")

    def cancel(self, job_id: str, *, versions: Versions = None, by: Principal = LOCAL) -> JobView:
        """End a waiting job, or ask a running one to end."""
        return self._ask(job_id, Verb.CANCEL, verbs.cancel, versions, by)

    def retry(
        self, job_id: str, *, workers: int | None = None, versions: Versions = None, by: Principal = LOCAL
    ) -> JobView:
        """Queue a failed or cancelled job again. Raises CheckpointGone if it could not resume.

        Each run resumes with `workers`, None: as many as before. Raises InvalidJob for a number that it cannot have.
        """
        self._require_checkpoints(job_id, Verb.RETRY, versions)
        return self._ask(job_id, Verb.RETRY, partial(verbs.retry, workers=workers), versions, by)

    def extend(
        self,
        job_id: str,
        caps: Budget | None = None,
        *,
        seeds: Sequence[int] = (),
        samples: int | None = None,
        workers: int | None = None,
        versions: Versions = None,
        by: Principal = LOCAL,
    ) -> JobView:
        """Queue a finished job again with larger caps, further seeds, or `samples` in all.

        `workers` is as in `retry`. Raises CheckpointGone, and InvalidJob for what is not more than the job has.
        """
        self._require_checkpoints(job_id, Verb.EXTEND, versions, caps=caps)
        act = partial(verbs.extend, caps=caps, seeds=seeds, samples=samples, workers=workers)
        return self._ask(job_id, Verb.EXTEND, act, versions, by)

    def steer(self, job_id: str, asked: SteerRequest, *, versions: Versions = None, by: Principal = LOCAL) -> JobView:
        """Steer the job's controllers from their next stage on. Raises InvalidJob for values that they cannot use."""
        return self._ask(job_id, Verb.STEER, partial(verbs.steer, asked=asked), versions, by)

    def steering(self, job_id: str) -> SteeringView:
        """Return the job's steers, and the values that people may steer. Raises NotFound."""
        with self._db.reading() as session:
            return steers.view(session, job_id)

    def edit(self, job_id: str, patch: JobEdit, *, versions: Versions = None, by: Principal = LOCAL) -> JobView:
        """Edit labels, notes, priority or webhook, or archive a finished job. Raises InvalidJob, IllegalTransition."""

        def edit(session: Session, job: JobRow) -> JobView:
            verbs.require_version(job, versions)
            if jobs.edit(session, job, patch):
                audit.add(session, by, "updateJob", job_id, now=self._db.now())
            return self._shown(session, job)

        return jobs.on_job(self._db, job_id, edit)

    def delete(self, job_id: str, *, versions: Versions = None, by: Principal = LOCAL) -> None:
        """Delete a finished job from the database; `Expiry` removes its files.

        All of it goes in one write, so that a delete that is refused or fails has deleted nothing. Raises
        IllegalTransition for an unfinished job.
        """

        def delete(session: Session, job: JobRow) -> None:
            now = self._db.now()
            verbs.require_version(job, versions)
            jobs.delete(session, job, now=now)
            audit.add(session, by, "deleteJob", job_id, now=now)

        with self._db.reading() as session:  # a refusal within the write would cost its group a second run
            job = queries.job_row(session, job_id)
            verbs.require_version(job, versions)
            if job.job_state in TERMINAL:
                starting_weights.require_unused(session, job)
        jobs.on_job(self._db, job_id, delete)
        self.owner_of.cache_clear()

    def _ask(
        self,
        job_id: str,
        verb: Verb,
        act: Callable[..., None],
        versions: Versions,
        by: Principal,
        *,
        what: str = "Job",
    ) -> JobView:
        """Apply a verb to the job, or to `what` of it. Raises IllegalTransition if its state does not allow that."""

        def ask(session: Session, job: JobRow) -> JobView:
            now = self._db.now()
            verbs.require_version(job, versions)
            act(session, job, by=by, now=now)
            audit.add(session, by, f"{verb}{what}", job_id, now=now)
            return self._shown(session, job)

        return jobs.on_job(self._db, job_id, ask)

    def _require_checkpoints(self, job_id: str, verb: Verb, versions: Versions, *, caps: Budget | None = None) -> None:
        """Raise CheckpointGone if a checkpoint to resume from, or weights of another job to start from, were removed.

        Holds no lock meanwhile.
        """
        with self._db.reading() as session:
            job = queries.job_row(session, job_id)
            verbs.require_version(job, versions)
            verbs.require_allowed(job, verb)
            needed = verbs.checkpoints(session, job, verb, caps=caps)
            weights = starting_weights.kept(job, self.storage)
        if (gone := self.storage.first_gone(job_id, needed)) is not None:
            raise CheckpointGone(
                f"{gone} is not in the job's folder on storage (any more): clone the job, which begins anew"
            )
        for file in weights:  # every attempt begins with them, also one that resumes
            if self.storage.first_gone(file.named.job, [file.url]) is not None:
                raise CheckpointGone(
                    f"{file.url}, which the job starts from, is not on storage (any more): clone the job with other "
                    "weights"
                )

    # Keys

    def add_key(self, name: str) -> str:
        """Create an admin's key. Only its digest is stored, so it cannot be shown again."""
        return self.keyring.create(NewKey(name=name, role=Role.ADMIN), by=LOCAL).secret

    def adopt_key(self, name: str, secret: str) -> None:
        """Create an admin's key from the operator's `secret`, unless the database has had it before."""
        self.keyring.adopt(secret, NewKey(name=name, role=Role.ADMIN), by=LOCAL)

    def check_key(self, key: str) -> bool:
        """Return whether `key` is a valid user's key."""
        try:
            self.keyring.holder(key)
        except Unauthorized:
            return False
        return True
