"""The database tables. Times are seconds since the epoch, UTC. JSON columns hold pydantic dumps."""

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    UniqueConstraint,
    text as sql,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, validates
from sqlalchemy.types import TypeDecorator

from service.job.priority import Priority
from service.job.states import JobState
from service.wire.records import MAX_REASON_CHARS

#: Constraints need the same names in every database, or a later migration cannot drop them.
NAMING = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}
Json = dict[str, Any]


class Text(TypeDecorator[str]):
    """Text that every database accepts: PostgreSQL allows no NUL, which a driver's last output may contain."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else value.replace("\0", "\ufffd")


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012
        str: Text(),
        Json: JSON(none_as_null=True),
        int: BigInteger().with_variant(Integer(), "sqlite"),  # SQLite assigns ids only to INTEGER
    }


def _job_key(*, primary_key: bool = False) -> Mapped[str]:
    return mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=primary_key)


def _trial_key() -> Mapped[str]:
    return mapped_column(ForeignKey("trials.id", ondelete="CASCADE"), primary_key=True)


class _Explained:
    """A row with a reason. A long reason is cut, like a driver's."""

    @validates("reason")
    def _bounded(self, _name: str, reason: str) -> str:
        return reason[:MAX_REASON_CHARS]


class JobRow(_Explained, Base):
    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_state_id", "state", "id"),
        Index("ix_jobs_project_id", "project", "id"),
        Index("ix_jobs_archived_id", "archived", "id"),
        Index("ix_jobs_name_id", "name", "id"),
        Index("ix_jobs_finished_id", sql("coalesce(finished_at, 1000000000000.0)"), "id"),  # as in `listing`
        Index("ix_jobs_result_id", sql("coalesce(score, 1000000000000.0)"), "id"),  # as in `listing`
    )

    id: Mapped[str] = mapped_column(primary_key=True)  # sorts by age
    name: Mapped[str]
    owner: Mapped[str]
    project: Mapped[str]
    state: Mapped[str]
    reason: Mapped[str] = mapped_column(default="")
    spec: Mapped[Json]
    source: Mapped[str | None]  # the job that was cloned; it may be gone
    starting_weights: Mapped[Json | None]  # the files that other jobs exported, found when it was added; None: no such
    attempt: Mapped[int] = mapped_column(default=0)
    attempts_before: Mapped[int] = mapped_column(default=0)  # attempts before the last progress, which no longer count
    num_steers: Mapped[int] = mapped_column(default=0)  # given so far, withdrawn ones included
    stopped_by: Mapped[str | None]  # who asked to stop it and keep the result; None: nobody
    first_budget: Mapped[Json | None]  # the submitted budget; None: never extended
    first_trials: Mapped[Json | None]  # the submitted seeds and sweep; None: never extended
    before_extension: Mapped[Json | None]  # what a waiting extension has replaced; None: none waits
    first_workers: Mapped[int | None]  # the submitted number; None: unchanged
    first_labels: Mapped[Json | None]  # the submitted labels; None: never edited
    first_priority: Mapped[str | None]  # the submitted priority; None: unchanged
    first_webhook: Mapped[Json | None]  # the submitted webhook, empty for none; None: never edited
    priority: Mapped[str] = mapped_column(default=Priority.NORMAL.value)
    queued_at: Mapped[float] = mapped_column(default=0.0)  # shifted by the time in which it did not wait
    waited_s: Mapped[float] = mapped_column(default=0.0)  # time in the queue until it last left it
    held_s: Mapped[float] = mapped_column(default=0.0)  # time with workers, counted only under a limit
    preempted_by: Mapped[str | None]  # the job that the queue paused it for
    notes: Mapped[str] = mapped_column(default="")
    archived: Mapped[bool] = mapped_column(default=False)  # left out of lists
    version: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[float]
    started_at: Mapped[float | None]
    finished_at: Mapped[float | None]
    result: Mapped[float | None]  # the best value of its objective's metric; None: it has not succeeded
    score: Mapped[float | None]  # the result, negated if higher is better
    deadline: Mapped[float | None]  # of the present state
    deadline_moved: Mapped[bool] = mapped_column(default=False)  # once, as its user could not act before it
    sees_all: Mapped[bool] = mapped_column(default=False)  # its samples may learn from jobs of every project
    not_before: Mapped[float] = mapped_column(default=0.0)  # back-off of the next attempt

    @property
    def job_state(self) -> JobState:
        return JobState(self.state)

    @property
    def stops(self) -> bool:
        """True if the job ends as if its budget were spent: a person asked for it, or it is at its limit."""
        return self.stopped_by is not None or self.is_at_limit

    @property
    def wall_limit_s(self) -> float | None:
        """The time for which the job may hold workers; None: there is no limit."""
        limit: float | None = (self.spec.get("limits") or {}).get("wall_seconds")  # earlier releases stored none
        return limit

    @property
    def is_at_limit(self) -> bool:
        """True if the job has held its workers for as long as it may."""
        return self.wall_limit_s is not None and self.held_s >= self.wall_limit_s

    @property
    def extends(self) -> bool:
        """True while an extension waits for its next attempt; the job has its result until then."""
        return self.before_extension is not None

    @property
    def reopens(self) -> bool:
        """True if the waiting extension gives finished trials more budget. One may only add trials."""
        return bool((self.before_extension or {}).get("reopens", True))  # the release before added none


class LabelRow(Base):
    __tablename__ = "job_labels"
    __table_args__ = (Index("ix_job_labels_name_value", "name", "value", "job_id"),)

    job_id: Mapped[str] = _job_key(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]


class JobTextRow(Base):
    """A job's text for searches: its name, notes, labels and methods, one per line, in lower case.

    Job rows are large; all of these can be read in a few milliseconds.
    """

    __tablename__ = "job_texts"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012

    job_id: Mapped[str] = _job_key(primary_key=True)
    text: Mapped[str]


class AttemptRow(_Explained, Base):
    __tablename__ = "attempts"
    __table_args__ = (
        Index(  # of the few rows that `AttemptBook.without_log` reads
            "ix_attempts_without_log",
            "job_id",
            "number",
            sqlite_where=sql("log_kept IS 0"),
            postgresql_where=sql("log_kept IS false"),
        ),
    )

    job_id: Mapped[str] = _job_key(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    submission_id: Mapped[str]
    began_at: Mapped[float]
    lease_expires: Mapped[float]
    ended_at: Mapped[float | None]
    outcome: Mapped[str | None]
    reason: Mapped[str] = mapped_column(default="")
    log_kept: Mapped[bool] = mapped_column(default=False)  # Ray is no longer asked for it
    cpus: Mapped[float | None]  # its use; None: begun by a release that did not record it
    gpus: Mapped[float | None]
    workers: Mapped[int | None]
    trials: Mapped[int | None]  # at a time
    held_s: Mapped[float] = mapped_column(default=0.0)  # as its driver last said, by its own steady clock


class SteerRow(Base):
    """A steer: pins, vetoes and a search that a person asked of a running job's controllers."""

    __tablename__ = "steers"

    job_id: Mapped[str] = _job_key(primary_key=True)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)  # counts from 1 within its job
    at: Mapped[float]
    name: Mapped[str]
    key_id: Mapped[str | None]
    said: Mapped[Json]  # trials, pins, vetoes, whether to search
    withdrawn_at: Mapped[float | None]
    withdrawn_by: Mapped[str | None]


class StreamRow(Base):
    """The last stored batch of a stream."""

    __tablename__ = "streams"

    job_id: Mapped[str] = _job_key(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    stream: Mapped[str] = mapped_column(primary_key=True)
    last_sequence: Mapped[int]


class TrialRow(Base):
    __tablename__ = "trials"
    __table_args__ = (Index("ix_trials_job_id", "job_id", "position"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = _job_key()
    position: Mapped[int]
    arm: Mapped[str]
    seed: Mapped[int]
    outcome: Mapped[str | None]
    stopped_by: Mapped[str | None]  # who stopped it alone, and keeps its result; None: nobody
    backend: Mapped[str | None]
    device: Mapped[str | None]
    step: Mapped[int] = mapped_column(default=0)
    seconds: Mapped[float] = mapped_column(default=0.0)
    learning_rate: Mapped[float | None]
    level: Mapped[float | None]
    validation_loss: Mapped[float | None]
    validation_metrics: Mapped[Json] = mapped_column(default=dict)  # newest values by name
    metric_directions: Mapped[Json] = mapped_column(default=dict)
    bill: Mapped[Json]
    schedule: Mapped[Json | None]  # plus the origin of the weights, once the trial has finished
    weights_url: Mapped[str | None]
    prior: Mapped[Json | None] = mapped_column(deferred=True)  # the past searches found for it
    steady: Mapped[Json | None] = mapped_column(deferred=True)  # the `Checkpointed` from which a larger budget resumes
    searching: Mapped[Json | None] = mapped_column(deferred=True)  # the `Searched` of a stage without a step yet
    sample: Mapped[Json | None]  # number and values (null until drawn) in a sweep; None: an arm's trial


class RungRow(Base):
    """A trial's measurement at a rung of its job's sweep. The first one stored stays."""

    __tablename__ = "rungs"
    __table_args__ = (UniqueConstraint("trial_id", "rung"),)

    id: Mapped[int] = mapped_column(primary_key=True)  # in order of arrival
    trial_id: Mapped[str] = mapped_column(ForeignKey("trials.id", ondelete="CASCADE"))
    rung: Mapped[int]
    step: Mapped[int]
    seconds: Mapped[float]
    bytes_sent: Mapped[int]
    value: Mapped[float | None]  # of the objective's metric


class StageRow(Base):
    __tablename__ = "stages"

    trial_id: Mapped[str] = _trial_key()
    stage: Mapped[int] = mapped_column(primary_key=True)
    first_step: Mapped[int]
    learning_rate: Mapped[float]
    level: Mapped[float | None]
    values: Mapped[Json] = mapped_column(default=dict)  # what else is searched
    reason: Mapped[str]
    switched: Mapped[bool]
    probability: Mapped[float | None]
    forecast: Mapped[float | None]
    forecast_std: Mapped[float | None]
    search_seconds: Mapped[float]
    search_steps: Mapped[int]
    search_bytes: Mapped[int]
    decision: Mapped[Json]  # without the posterior
    posterior: Mapped[Json | None] = mapped_column(deferred=True)  # large, and shown for few stages
    closed: Mapped[bool] = mapped_column(default=False)
    num_steps: Mapped[int | None]
    density: Mapped[float | None]
    threshold: Mapped[float | None]
    loss: Mapped[float | None]  # the forecast loss, as measured at the end
    bill: Mapped[Json | None]  # the trial's, up to `resume`
    resume: Mapped[Json | None] = mapped_column(deferred=True)  # of the last stage alone
    resume_step: Mapped[int | None]  # committed steps in `resume`


class ProbeRow(Base):
    __tablename__ = "probes"
    __table_args__ = (UniqueConstraint("trial_id", "stage", "probe_id"),)

    id: Mapped[int] = mapped_column(primary_key=True)  # in order of arrival
    trial_id: Mapped[str] = mapped_column(ForeignKey("trials.id", ondelete="CASCADE"))
    stage: Mapped[int]
    probe_id: Mapped[str]
    learning_rate: Mapped[float]
    level: Mapped[float | None]
    values: Mapped[Json] = mapped_column(default=dict)  # what else is searched
    origin: Mapped[str]
    num_steps: Mapped[int]
    seconds: Mapped[float]
    ended_s: Mapped[float | None]
    bytes_sent: Mapped[int]
    density: Mapped[float | None]
    loss: Mapped[float | None]
    forecast: Mapped[float | None]
    forecast_std: Mapped[float | None]
    status: Mapped[str]


class PointRow(Base):
    """A point that is not in a chunk yet."""

    __tablename__ = "metric_points"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012  (the key is the row: half the space)

    trial_id: Mapped[str] = _trial_key()
    name: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    seconds: Mapped[float]
    value: Mapped[float | None]


class ChunkRow(Base):
    """Many points of a series, packed; see `service.control.metrics.points`."""

    __tablename__ = "metric_chunks"

    trial_id: Mapped[str] = _trial_key()
    name: Mapped[str] = mapped_column(primary_key=True)
    level: Mapped[int] = mapped_column(primary_key=True)  # of the pyramid: 0 holds every point
    first_step: Mapped[int] = mapped_column(primary_key=True)
    last_step: Mapped[int]
    num_points: Mapped[int]  # represented by it
    least: Mapped[float | None]
    data: Mapped[bytes]


class EventRow(Base):
    """A change of a job. Ids are in commit order, see `service.control.events`.

    It has no foreign key to the job, since readers must learn that a job was deleted.
    """

    __tablename__ = "events"
    # Without AUTOINCREMENT, SQLite would reuse the id of a deleted newest row.
    __table_args__ = (Index("ix_events_job_id", "job_id", "id"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(primary_key=True)
    job_id: Mapped[str]
    project: Mapped[str]
    kind: Mapped[str]
    at: Mapped[float]
    data: Mapped[Json]


class MessageRow(Base):
    """A message that a job has ended, to the job's webhook."""

    __tablename__ = "messages"

    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), index=True)
    url: Mapped[str]
    body: Mapped[str]  # JSON, signed and sent as it is
    tries: Mapped[int] = mapped_column(default=0)
    next_at: Mapped[float | None] = mapped_column(index=True)  # of the next try; None: there is none
    fault: Mapped[str] = mapped_column(default="")  # of the last try


class IdempotencyRow(Base):
    __tablename__ = "idempotency_keys"

    project: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), index=True)
    created_at: Mapped[float]
    request: Mapped[str | None]  # the digest of the request; None: the job itself was posted


class RemovalRow(Base):
    """A deleted job whose folder is still on storage, or that was deleted within the last hour."""

    __tablename__ = "removals"

    job_id: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[float]


class MarkRow(Base):
    """A storage folder with the service's mark, by the mark's URL."""

    __tablename__ = "marks"

    url: Mapped[str] = mapped_column(primary_key=True)
    left_at: Mapped[float]


class CodeRow(Base):
    """A project's package of user code; the file is on storage."""

    __tablename__ = "code"

    project: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]
    num_bytes: Mapped[int]
    num_files: Mapped[int]
    created_at: Mapped[float]
    used_at: Mapped[float]


class CodeRemovalRow(Base):
    """A deleted package whose file is still on storage. Until it is gone, the project cannot upload it again."""

    __tablename__ = "code_removals"

    project: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[float]


class ApiKeyRow(Base):
    """A user's key, stored as its SHA-256."""

    __tablename__ = "api_keys"
    __table_args__ = (UniqueConstraint("digest"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    digest: Mapped[str]
    name: Mapped[str]
    owner: Mapped[str]
    role: Mapped[str]
    project: Mapped[str]
    created_by: Mapped[str]
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]
    last_used_at: Mapped[float | None]


class RetiredSecretRow(Base):
    """The secret that a key had before it was rotated, accepted for a while longer; stored as its SHA-256."""

    __tablename__ = "retired_secrets"

    digest: Mapped[str] = mapped_column(primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id", ondelete="CASCADE"), index=True)
    expires_at: Mapped[float]


class QuotaRow(Base):
    """The quota of an owner or a project; `*` is the default."""

    __tablename__ = "quotas"

    kind: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    workers: Mapped[int | None]
    gpus: Mapped[float | None]
    running: Mapped[int | None]
    waiting: Mapped[int | None]
    weight: Mapped[float]
    set_by: Mapped[str]
    set_at: Mapped[float]


class UsageRow(Base):
    """The CPU and GPU seconds of a project's ended attempts, as of `at`. Older seconds decay."""

    __tablename__ = "project_usage"

    project: Mapped[str] = mapped_column(primary_key=True)
    cpu_s: Mapped[float]
    gpu_s: Mapped[float]
    at: Mapped[float]


class SignInCodeRow(Base):
    """A code that opens one session, stored as its SHA-256."""

    __tablename__ = "sign_in_codes"

    digest: Mapped[str] = mapped_column(primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id", ondelete="CASCADE"), index=True)
    expires_at: Mapped[float]


class SessionRow(Base):
    """A browser's session, stored as the SHA-256 of its cookie."""

    __tablename__ = "sessions"

    digest: Mapped[str] = mapped_column(primary_key=True)
    key_id: Mapped[str | None] = mapped_column(ForeignKey("api_keys.id", ondelete="CASCADE"), index=True)
    name: Mapped[str | None]  # of a visitor who signed in at the issuer, without a key; so are role and project
    role: Mapped[str | None]
    project: Mapped[str | None]
    expires_at: Mapped[float]  # later with use,
    ends_at: Mapped[float]  # and never later than this


class AuditRow(Base):
    """An audit entry: a change that a user made, or that their role did not allow."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(primary_key=True)  # in order of arrival
    at: Mapped[float]
    name: Mapped[str]
    key_id: Mapped[str | None]
    address: Mapped[str]
    action: Mapped[str]
    target: Mapped[str]
    outcome: Mapped[str]
