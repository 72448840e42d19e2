"""The requests of the HTTP API, each described once. The blocking and the asynchronous client send them."""

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Generic, Literal, TypedDict, TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from service.code_package import Package
from service.job.priority import Priority
from service.job.spec import JobSpec
from service.job.states import JobState, Verb
from service.job.vocabulary import MAY_BE_NEWER
from service.prediction.predict import PredictionRequest
from service.wire.access import DEFAULT_PROJECT, AuditPage, IssuedKey, KeyView, Me, Role, SignInCode
from service.wire.artifacts import Artifact, Which
from service.wire.cluster import ClusterView
from service.wire.code import CodePage, CodeView
from service.wire.comparison import Comparison
from service.wire.events import EventKind, EventPage
from service.wire.jobs import Cloned, JobOrder, JobPage, JobView, Validated
from service.wire.methods import MethodsView
from service.wire.predictions import Prediction
from service.wire.queue import QueueView, QuotaKind, QuotaView
from service.wire.reports import JobReport
from service.wire.snapshot import Snapshot
from service.wire.steering import SteeringView
from service.wire.trials import AttemptView, ScheduleView, Series, SeriesExtent, StageView, TrialView

T = TypeVar("T")
Spec = JobSpec | Mapping[str, Any]
IDEMPOTENCY_KEY = "Idempotency-Key"
_BINARY = "application/octet-stream"
#: The timeout of answers that the service may work on for long: it reads all of a job with hundreds of trials, looks
#: for files on a slow storage, or packs 100 MB of code again.
_LONG_S = 60.0

_TRIALS = TypeAdapter(tuple[TrialView, ...])
_STAGES = TypeAdapter(tuple[StageView, ...])
_SERIES = TypeAdapter(tuple[Series, ...])
_EXTENTS = TypeAdapter(tuple[SeriesExtent, ...])
_ARTIFACTS = TypeAdapter(tuple[Artifact, ...])
_ATTEMPTS = TypeAdapter(tuple[AttemptView, ...])
_KEYS = TypeAdapter(tuple[KeyView, ...])
_QUOTAS = TypeAdapter(tuple[QuotaView, ...])


class UnreadableAnswer(ValueError):
    """This release cannot read an answer: a field is missing or of another type. The service has another release."""


def reading(validate: Callable[..., T]) -> Callable[[bytes], T]:
    """Return a function that reads an answer with `validate`.

    It drops fields that only a newer service knows, and keeps newer words as they are.
    """

    def read(content: bytes) -> T:
        try:
            return validate(content, extra="ignore", context=MAY_BE_NEWER)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = "".join(f"/{part}" for part in first["loc"])
            raise UnreadableAnswer(
                f"the service is of another release than this client, {version('wiretune')}, which cannot read its "
                f"answer: {place or '/'}: {first['msg']}"
            ) from error

    return read


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request, and the way to read its answer."""

    method: str
    path: str
    read: Callable[[bytes], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Any = None
    content: bytes | None = None
    #: Whether sending it twice has the same effect as sending it once.
    is_repeatable: bool = True
    #: The media type of the answer, if it has a body.
    media_type: str = "application/json"
    #: The answer, if it is known without a request.
    known: T | None = None
    #: The client waits at least this long for an answer that may take the service long. This is longer than the client
    #: retries by default, so only a more patient caller, such as one who follows a job, asks again.
    timeout_s: float = 0.0
    #: Reads the answer in place of `read` if it needs the headers, too.
    read_with_headers: Callable[[bytes, Mapping[str, str]], T] | None = None

    def answer(self, content: bytes, headers: Mapping[str, str]) -> T:
        """Read an answer from its body and headers."""
        return self.read(content) if self.read_with_headers is None else self.read_with_headers(content, headers)


class LogText(bytes):
    """A part of a log in bytes: it begins at `offset` of the whole log and ends at `end`.

    It may be shorter than `end - offset`: long logs are stored without their middle.
    """

    offset, end = 0, 0


def submit(spec: Spec, *, idempotency_key: str | None = None, source: str | None = None) -> Call[JobView]:
    """Queue a job. Repeated calls with the same `idempotency_key` make one job.

    If the job is a clone, `source` is the id of the original.
    """
    return Call(
        "POST",
        "/v1/jobs",
        reading(JobView.model_validate_json),
        params=_given(source=source),
        headers=_once(idempotency_key),
        json=_plain(spec),
    )


def validate(spec: Spec) -> Call[Validated]:
    """Check a job without queueing it; the answer has every default filled in."""
    return Call("POST", "/v1/jobs:validate", reading(Validated.model_validate_json), json=_plain(spec))


def predict(request: PredictionRequest | Mapping[str, Any]) -> Call[Prediction]:
    """Predict the steps, bytes and time to a loss of every method that fits a job, on a stated link.

    A mapping is checked by the service. Its `job` may be a `JobSpec`.
    """
    if isinstance(request, PredictionRequest):
        asked = request.model_dump(mode="json", exclude_unset=True) | {"job": request.job.given()}
    else:
        asked = {name: _plain(value) if isinstance(value, JobSpec) else value for name, value in request.items()}
    return Call("POST", "/v1/predictions", reading(Prediction.model_validate_json), json=asked)


def methods(
    name: str | None = None,
    *,
    workload: str | None = None,
    shapes: str | None = None,
    workers: int | None = None,
) -> Call[MethodsView]:
    """Return the methods that a job can choose, with their papers, knobs and combinations.

    The bytes per step are predicted for `workers` (default 2), and for a built-in `workload` (default `digits-mlp`) or
    parameter `shapes` such as `512x64,512`.
    """
    read = reading(MethodsView.model_validate_json)
    return _get("/v1/methods", read, name=name, workload=workload, shapes=shapes, workers=workers)


class JobFilters(TypedDict, total=False):
    """The filters and the order that `jobs` takes."""

    state: JobState | Collection[JobState] | None
    labels: Mapping[str, str] | None
    ref: str | None
    text: str | None
    owner: str | None
    project: str | None
    created_after: datetime | None
    created_before: datetime | None
    archived: bool | None
    ids: Collection[str] | None
    progress: bool
    fields: Collection[str]
    bill: bool
    order_by: JobOrder


_ARCHIVED = {False: None, True: "true", None: "any"}


def jobs(
    *,
    state: JobState | Collection[JobState] | None = None,
    labels: Mapping[str, str] | None = None,
    ref: str | None = None,
    text: str | None = None,
    owner: str | None = None,
    project: str | None = None,
    created_after: datetime | None = None,
    created_before: datetime | None = None,
    archived: bool | None = False,
    ids: Collection[str] | None = None,
    progress: bool = False,
    fields: Collection[str] = (),
    bill: bool = False,
    order_by: JobOrder = JobOrder.CREATED_DOWN,
    limit: int = 50,
    cursor: str | None = None,
    count: bool = False,
) -> Call[JobPage]:
    """Return a page of jobs, newest first unless `order_by` says otherwise.

    Args:
        state: only jobs in this state, or in any of several. An empty list returns no job.
        labels: only jobs that have all of these labels.
        ref: only jobs whose id begins or ends with this, or whose whole name it is.
        text: words that must all occur in the name, the notes, a label, or what it trains: its workload, and its kinds
            of exchange, sync and optimizer.
        owner: only jobs that this owner submitted.
        project: only jobs of this project.
        created_after: only jobs submitted at this moment or later. Without an offset it is local time.
        created_before: only jobs submitted before this moment.
        archived: False leaves archived jobs out, True lists only those, None lists both.
        ids: only jobs with one of these ids, up to 500. An empty list returns no job.
        progress: fill in `progress`: how far each job is.
        fields: JSON pointers into the jobs' specs, such as `/optimizer/learning_rate`: fill in `fields` by them.
        bill: fill in `bill`: what all trials of each job have used.
        order_by: e.g. `"name"`, or `"-name"` for the reverse. `"result"` has the best job first.
        limit: the most jobs to return, up to 500.
        cursor: `next_cursor` of the previous page, in the same order.
        count: fill in `total`.
    """
    after, before = (each and each.astimezone(UTC).isoformat() for each in (created_after, created_before))
    is_of_none = any(each is not None and not each for each in (state, ids))
    call = _get(
        "/v1/jobs",
        reading(JobPage.model_validate_json),
        state=[state] if isinstance(state, str) else list(state or ()),
        label=[f"{name}={value}" for name, value in (labels or {}).items()],
        ref=ref,
        text=text,
        owner=owner,
        project=project,
        created_after=after,
        created_before=before,
        archived=_ARCHIVED[archived],
        id=[ids] if isinstance(ids, str) else list(ids or ()),
        progress=progress or None,
        field=[fields] if isinstance(fields, str) else list(fields),
        bill=bill or None,
        order_by=order_by,
        limit=limit,
        cursor=cursor,
        count=count or None,
    )
    return replace(call, known=JobPage(jobs=(), total=0 if count else None)) if is_of_none else call


def with_progress(job_id: str) -> Call[JobPage]:
    """Return the job as lists show it, with its progress."""
    return jobs(ids=[job_id], archived=None, progress=True)


def candidates(ref: str, *, limit: int) -> Call[JobPage]:
    """Return the jobs that `ref` may mean: by a part of the id, or by the whole name."""
    return jobs(ref=ref, archived=None, limit=limit)


def newest(me: Me | None = None) -> Call[JobPage]:
    """Return the newest job of `me`; with None, the newest that this client sees."""
    # Two projects may use the same owner name, so the owner alone is not enough.
    return jobs(limit=1) if me is None else jobs(owner=me.name, project=me.project, limit=1)


def job(job_id: str) -> Call[JobView]:
    """Return one job."""
    return _get(f"/v1/jobs/{job_id}", reading(JobView.model_validate_json))


def trials(job_id: str) -> Call[tuple[TrialView, ...]]:
    """Return the job's trials, in its order."""
    return _get(f"/v1/jobs/{job_id}/trials", reading(_TRIALS.validate_json))


def stages(
    job_id: str, *, trial: str | None = None, stage: Sequence[int] = (), with_posterior: bool = False
) -> Call[tuple[StageView, ...]]:
    """Return the decided stages, trial by trial; with `stage`, only those numbers.

    Posteriors are large, so they come only `with_posterior`.
    """
    asked = {"trial": trial, "stage": list(stage) or None, "posterior": with_posterior or None}
    return _long(_get(f"/v1/jobs/{job_id}/stages", reading(_STAGES.validate_json), **asked))


def recorded(job_id: str, *, trial: str | None = None) -> Call[tuple[SeriesExtent, ...]]:
    """Return every trial's series: the name, how many points it has, and the last of them."""
    return _get(f"/v1/jobs/{job_id}/metrics", reading(_EXTENTS.validate_json), trial=trial)


def metrics(
    job_id: str,
    name: str,
    *,
    trial: str | None = None,
    max_points: int = 2000,
    first_step: int | None = None,
    last_step: int | None = None,
) -> Call[tuple[Series, ...]]:
    """Return a metric's series, one per trial, each thinned to `max_points`; by default over all steps."""
    path = f"/v1/jobs/{job_id}/metrics/{name}"
    steps = {"first_step": first_step, "last_step": last_step}
    return _get(path, reading(_SERIES.validate_json), trial=trial, max_points=max_points, **steps)


def schedule(job_id: str, *, arm: str | None = None, seed: int | None = None) -> Call[ScheduleView]:
    """Return a trial's learned schedule; by default a sweep's best trial's, else that of the first arm and seed."""
    return _get(f"/v1/jobs/{job_id}/schedule", reading(ScheduleView.model_validate_json), arm=arm, seed=seed)


def attempts(job_id: str) -> Call[tuple[AttemptView, ...]]:
    """Return the job's attempts, oldest first."""
    return _get(f"/v1/jobs/{job_id}/attempts", reading(_ATTEMPTS.validate_json))


def report(job_id: str) -> Call[JobReport]:
    """Return the job's result: one entry per trial, and one per arm over its seeds."""
    return _long(_get(f"/v1/jobs/{job_id}/report", reading(JobReport.model_validate_json)))


def comparison(job_id: str, others: Collection[str] = ()) -> Call[Comparison]:
    """Compare a job with others: the fields in which they differ, and their results against a common target."""
    read = reading(Comparison.model_validate_json)
    return _long(_get(f"/v1/jobs/{job_id}/comparison", read, other=list(others)))


def snapshot(job_id: str, *, since: int | None = None, max_points: int | None = None) -> Call[Snapshot]:
    """Return all that the job's page shows at one moment; with an earlier `cursor` as `since`, only the changes."""
    read = reading(Snapshot.model_validate_json)
    return _long(_get(f"/v1/jobs/{job_id}/snapshot", read, since=since, max_points=max_points))


def events(job_id: str | None, *, after: int | None, kinds: Collection[EventKind]) -> Call[EventPage]:
    """Return the stream of changes of one job or of all."""
    path = "/v1/events" if job_id is None else f"/v1/jobs/{job_id}/events"
    params = _given(after=after) | {"kind": list(kinds)}
    read, stream = reading(EventPage.model_validate_json), "text/event-stream"
    return Call("GET", path, read, params=params, headers={"Accept": stream}, media_type=stream)


def artifacts(job_id: str) -> Call[tuple[Artifact, ...]]:
    """Return the files that the job has: report, metrics, schedules, weights, checkpoints, logs."""
    return _long(_get(f"/v1/jobs/{job_id}/artifacts", reading(_ARTIFACTS.validate_json)))


def logs(job_id: str, *, attempt: int | None = None, offset: int = 0, tail: int | None = None) -> Call[LogText]:
    """Return the output of an attempt, by default the last: from byte `offset` on, or the last whole lines.

    `tail` asks for those lines, that many bytes at most. To read on later, pass the text's `end` as `offset`.
    """

    def read(content: bytes, headers: Mapping[str, str]) -> LogText:
        text = LogText(content)
        text.offset = int(headers.get("X-Log-Offset", offset))
        text.end = int(headers.get("X-Log-End", text.offset + len(text)))  # earlier releases do not send it
        return text

    params = _given(attempt=attempt, offset=offset or None, tail=tail)
    path = f"/v1/jobs/{job_id}/logs"
    return Call("GET", path, LogText, params=params, media_type="text/plain", read_with_headers=read)


def weights(job_id: str, *, arm: str | None = None, seed: int | None = None, which: Which | None = None) -> Call[bytes]:
    """Return a trial's safetensors file; by default a sweep's best trial's, else that of the first arm and seed."""
    return _get_bytes(f"/v1/jobs/{job_id}/weights", _BINARY, arm=arm, seed=seed, which=which)


def table(
    job_id: str,
    *,
    arm: str | None = None,
    seed: int | None = None,
    name: str | None = None,
    first_step: int | None = None,
) -> Call[bytes]:
    """Return every point as CSV, by default of all trials, all series and all steps."""
    path = f"/v1/jobs/{job_id}/metrics.csv"
    return _get_bytes(path, "text/csv", arm=arm, seed=seed, name=name, first_step=first_step)


def file(job_id: str, path: str) -> Call[bytes]:
    """Return a file of the job's folder on storage: a checkpoint's manifest, or a file that a manifest names."""
    return _get_bytes(f"/v1/jobs/{job_id}/files/{quote(path)}", _BINARY)


def pause(job_id: str, *, version: int | None = None) -> Call[JobView]:
    """Pause the job: it writes a checkpoint and releases its resources. For `version` see `resume`."""
    return _ask(job_id, Verb.PAUSE, version)


def resume(job_id: str, *, workers: int | None = None, version: int | None = None) -> Call[JobView]:
    """Resume a paused job at its old place in the queue, with `workers` per run (None: as many as before).

    Every verb takes a `version`: it then acts only if the job is still at that version, and else raises `ApiError` 412.
    """
    return _ask(job_id, Verb.RESUME, version, workers=workers)


def stop(job_id: str, *, version: int | None = None) -> Call[JobView]:
    """End the job as if its budget were spent, and keep its result. For `version` see `resume`."""
    return _ask(job_id, Verb.STOP, version)


def stop_trial(job_id: str, trial_id: str, *, version: int | None = None) -> Call[JobView]:
    """End one trial of the job as if its budget were spent, and keep its result. The others go on.

    A trial that has not begun is left out. For `version` see `resume`.
    """
    return _ask(f"{job_id}/trials/{quote(trial_id, safe='')}", Verb.STOP, version)


def cancel(job_id: str, *, version: int | None = None) -> Call[JobView]:
    """End the job without a result. For `version` see `resume`."""
    return _ask(job_id, Verb.CANCEL, version)


def retry(job_id: str, *, workers: int | None = None, version: int | None = None) -> Call[JobView]:
    """Continue a failed or cancelled job from its last checkpoint. For `workers` and `version` see `resume`."""
    return _long(_ask(job_id, Verb.RETRY, version, workers=workers))


def extend(
    job_id: str,
    *,
    seconds: float | None = None,
    steps: int | None = None,
    bytes: int | None = None,
    seeds: Sequence[int] | None = None,
    samples: int | None = None,
    workers: int | None = None,
    version: int | None = None,
) -> Call[JobView]:
    """Give a job that succeeded a larger budget. Its `reason` then says where each trial continues.

    `seeds` are further ones, with which each arm trains too, and `samples` how many its sweep has in all. Without a
    larger budget, finished trials stay as they are. For `workers` and `version` see `resume`.
    """
    more = _given(seconds=seconds, steps=steps, bytes=bytes, seeds=seeds and list(seeds), samples=samples)
    return _long(_ask(job_id, Verb.EXTEND, version, workers=workers, json=more))


def steer(
    job_id: str,
    *,
    pin: Mapping[str, bool | float | str] | None = None,
    veto: Mapping[str, Mapping[str, float] | Sequence[bool | str]] | None = None,
    search_now: bool = False,
    clear: bool | Sequence[int] = False,
    trials: Sequence[str] | None = None,
    version: int | None = None,
) -> Call[JobView]:
    """Steer the job's controllers from the next stage on: `pin` values, `veto` others, or ask for a search.

    A veto of numbers is `{"above": 0.1}`, `{"below": ...}` or both. For other values it is a list. `clear` first
    withdraws all steers, or those with the given ids. `trials` are ids; None steers all trials that search. For
    `version` see `resume`.
    """
    said = _given(pin=pin, veto=veto, trials=trials, search_now=search_now or None, clear=clear or None)
    return _ask(job_id, Verb.STEER, version, json=said)


def steering(job_id: str) -> Call[SteeringView]:
    """Return the steers of the job, newest last, and what can be steered."""
    return _get(f"/v1/jobs/{job_id}/steering", reading(SteeringView.model_validate_json))


def edit(
    job_id: str,
    *,
    labels: Mapping[str, str | None] | None = None,
    notes: str | None = None,
    archived: bool | None = None,
    priority: Priority | str | None = None,
    webhook: Mapping[str, Any] | Literal[False] | None = None,
    version: int | None = None,
) -> Call[JobView]:
    """Edit the job's labels and notes, archive it once it is over, or bring it back.

    Only the named labels change; None removes one. A job that is not over can also get another `priority`: low,
    normal, high or urgent. `webhook`, such as `{"url": "https://..."}`, is told of what happens from then on; False
    removes it, and `{"on": ["failed"]}` changes only what is told. Fields that you leave out stay as they are. For
    `version` see `resume`.
    """
    patch = _given(labels=labels and dict(labels), notes=notes, archived=archived, priority=priority)
    if webhook is not None:
        patch["webhook"] = dict(webhook) if webhook else None
    headers = _if_match(version)
    return Call("PATCH", f"/v1/jobs/{job_id}", reading(JobView.model_validate_json), headers=headers, json=patch)


def delete(job_id: str, *, version: int | None = None) -> Call[None]:
    """Delete a job that is over, with its results. A second call raises `ApiError` 404. For `version` see `resume`."""
    headers = _if_match(version)
    return Call("DELETE", f"/v1/jobs/{job_id}", lambda _: None, headers=headers, is_repeatable=False)


def clone(
    job_id: str,
    changes: Mapping[str, Any],
    *,
    trial: str | None = None,
    dry_run: bool = False,
    idempotency_key: str | None = None,
) -> Call[Cloned]:
    """Queue a copy of the job with `changes`, a JSON merge patch; a dry run only returns what differs.

    With `trial`, an arm or a sample such as `sample-3`, `best`, or an id, the copy trains what that trial trains.
    """
    return Call(
        "POST",
        f"/v1/jobs/{job_id}:clone",
        reading(Cloned.model_validate_json),
        params=_given(trial=trial, dry_run=dry_run),
        headers={} if dry_run else _once(idempotency_key),
        json=dict(changes),
    )


def me() -> Call[Me]:
    """Return who this client is to the service: its name, role and project."""
    return _get("/v1/me", reading(Me.model_validate_json))


def create_key(
    name: str,
    *,
    owner: str | None = None,
    role: Role = Role.SUBMITTER,
    project: str = DEFAULT_PROJECT,
    expires_at: datetime | None = None,
) -> Call[IssuedKey]:
    """Make an API key. Its `secret` is shown only this once.

    Only admins make keys of other owners and projects, or with a stronger role than their own.
    """
    ends = expires_at and expires_at.isoformat()
    given = _given(name=name, owner=owner, role=role, project=project, expires_at=ends)
    return Call("POST", "/v1/keys", reading(IssuedKey.model_validate_json), json=given, is_repeatable=False)


def keys() -> Call[tuple[KeyView, ...]]:
    """Return the keys of this client's owner, or all keys for an admin."""
    return _get("/v1/keys", reading(_KEYS.validate_json))


def key(key_id: str) -> Call[KeyView]:
    """Return one key, without its secret."""
    return _get(f"/v1/keys/{key_id}", reading(KeyView.model_validate_json))


def rotate_key(key_id: str, *, grace_s: float = 0.0) -> Call[IssuedKey]:
    """Give a key a new secret. The old one stops working at once, or after `grace_s`."""
    path, read = f"/v1/keys/{key_id}:rotate", reading(IssuedKey.model_validate_json)
    # With a grace a repeat does no harm: the secret in a lost answer is one that nobody uses.
    return Call("POST", path, read, params=_given(grace_s=grace_s or None), is_repeatable=grace_s > 0)


def revoke_key(key_id: str) -> Call[KeyView]:
    """Revoke a key for good."""
    return Call("POST", f"/v1/keys/{key_id}:revoke", reading(KeyView.model_validate_json))


def audit(
    *,
    name: str | None = None,
    action: str | None = None,
    target: str | None = None,
    outcome: Literal["done", "refused"] | None = None,
    limit: int = 50,
    cursor: int | None = None,
) -> Call[AuditPage]:
    """Return what users changed, newest first; for admins.

    Filter by user `name`, by `action` such as `createJob`, and by `target`, the id of a job or key.
    """
    where = {"name": name, "action": action, "target": target, "outcome": outcome}
    return _get("/v1/audit", reading(AuditPage.model_validate_json), **where, limit=limit, cursor=cursor)


def cluster() -> Call[ClusterView]:
    """Return the cluster's nodes, and whose workers each one runs."""
    return _get("/v1/cluster", reading(ClusterView.model_validate_json))


def queue(*, after: int = 0, limit: int = 50) -> Call[QueueView]:
    """Return the waiting jobs in their order, and why each waits; begins behind the place `after`."""
    return _get("/v1/queue", reading(QueueView.model_validate_json), after=after, limit=limit)


def quotas() -> Call[tuple[QuotaView, ...]]:
    """Return all quotas."""
    return _get("/v1/quotas", reading(_QUOTAS.validate_json))


def set_quota(
    kind: QuotaKind | str,
    name: str,
    *,
    workers: int | None = None,
    gpus: float | None = None,
    running: int | None = None,
    waiting: int | None = None,
    weight: float = 1.0,
) -> Call[QuotaView]:
    """Set the quota of an `owner` or a `project`. The name `*` is for all without their own; None is no limit.

    It replaces an earlier quota as a whole; `edit_quota` changes some of its limits.
    """
    limits = {"workers": workers, "gpus": gpus, "running": running, "weight": weight}
    if waiting is not None:  # earlier releases of the service do not know it
        limits["waiting"] = waiting
    return Call("PUT", _quota(kind, name), reading(QuotaView.model_validate_json), json=limits)


def edit_quota(kind: QuotaKind | str, name: str, changes: Mapping[str, float | None]) -> Call[QuotaView]:
    """Change limits of a quota, such as `{"weight": 3, "gpus": None}`, or make it. The others stay; None is no limit.

    The limits are those of `set_quota`.
    """
    return Call("PATCH", _quota(kind, name), reading(QuotaView.model_validate_json), json=dict(changes))


def delete_quota(kind: QuotaKind | str, name: str) -> Call[None]:
    """Remove a quota."""
    return Call("DELETE", _quota(kind, name), lambda _: None, is_repeatable=False)


def _quota(kind: QuotaKind | str, name: str) -> str:
    return f"/v1/quotas/{quote(kind, safe='')}/{quote(name, safe='')}"


def upload_code(package: Package) -> Call[CodeView]:
    """Upload a package of code for jobs of this client's project."""
    headers, read = {"Content-Type": "application/zip"}, reading(CodeView.model_validate_json)
    return _long(Call("POST", "/v1/code", read, headers=headers, content=package.content))


def code(digest: str, *, project: str | None = None) -> Call[CodeView]:
    """Return what the service knows of a package of code. Raises `ApiError` 404 if it does not have it.

    For `project` see `delete_code`.
    """
    return _get(f"/v1/code/{digest}", reading(CodeView.model_validate_json), project=project)


def code_content(digest: str, *, project: str | None = None) -> Call[bytes]:
    """Return the files of a package of code as a zip. For `project` see `delete_code`."""
    return _get_bytes(f"/v1/code/{digest}/content", _BINARY, project=project)


def list_code(*, limit: int = 50, cursor: str | None = None) -> Call[CodePage]:
    """Return a page of the packages of code that this client sees, newest first."""
    return _get("/v1/code", reading(CodePage.model_validate_json), limit=limit, cursor=cursor)


def delete_code(digest: str, *, project: str | None = None) -> Call[None]:
    """Delete a package of code. Raises `ApiError` 409 while a job needs it.

    If several projects have it, `project` says whose. The default is this client's own, or else the oldest it sees.
    """
    return Call("DELETE", f"/v1/code/{digest}", lambda _: None, params=_given(project=project), is_repeatable=False)


def sign_in_code() -> Call[SignInCode]:
    """Return a code that signs one browser in. It works once, within five minutes."""
    return Call("POST", "/v1/sign-in-codes", reading(SignInCode.model_validate_json))


def _get(path: str, read: Callable[[bytes], T], **params: Any) -> Call[T]:
    return Call("GET", path, read, params=_given(**params))


def _long(call: Call[T]) -> Call[T]:
    return replace(call, timeout_s=_LONG_S)


def _get_bytes(path: str, media_type: str, **params: Any) -> Call[bytes]:
    return Call("GET", path, bytes, params=_given(**params), media_type=media_type)


def _ask(
    job_id: str, verb: Verb, version: int | None, *, workers: int | None = None, json: Any = None
) -> Call[JobView]:
    """Describe a verb. Only with a version is it safe to repeat: without one, the repeat acts on the changed job."""
    return Call(
        "POST",
        f"/v1/jobs/{job_id}:{verb}",
        reading(JobView.model_validate_json),
        params=_given(workers=workers),
        headers=_if_match(version),
        json=json,
        is_repeatable=version is not None,
    )


def _if_match(version: int | None) -> dict[str, str]:
    """Return the header that limits the call to this version of the job."""
    return {} if version is None else {"If-Match": f'"{version}"'}


def _once(idempotency_key: str | None) -> dict[str, str]:
    """Return the header by which repeated requests make one job."""
    return {IDEMPOTENCY_KEY: idempotency_key or str(uuid.uuid4())}


def _given(**params: Any) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


def _plain(spec: Spec) -> Any:
    return spec.given() if isinstance(spec, JobSpec) else dict(spec)
