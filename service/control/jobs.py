"""Create, move, edit and delete a job's row. Most functions take an open transaction; `on_job` opens one."""

import secrets
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import chain
from types import MappingProxyType
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, bindparam, delete as delete_from, insert, select
from sqlalchemy.orm import Session, object_session

from search.config import Budget
from search.past_jobs.prior import Prior
from search.sweep.draw import designed
from service.control import code, events, messages, queries, starting_weights
from service.control.access.rules import Principal, visible_project
from service.control.database import rows
from service.control.database.session import Database
from service.control.models import IdempotencyRow, JobRow, JobTextRow, LabelRow, RemovalRow, TrialRow
from service.control.queue.queued import Quotas
from service.control.queue.quotas import require_place
from service.errors import IllegalTransition, InvalidJob, KeyReused
from service.job.parts import MAX_LABELS, Webhook
from service.job.priority import Priority
from service.job.problems import Problem
from service.job.spec import JobSpec
from service.job.states import RULES, TERMINAL, JobState, Occasion, Verb, may_follow, verbs_in
from service.job.sweep import sample_name
from service.wire.events import EventKind
from service.wire.jobs import JobEdit, WebhookPatch
from service.wire.records import Bill, Sample
from service.wire.stored import stored_spec

T = TypeVar("T")


def locked(session: Session, job_id: str) -> JobRow:
    """Return the job's row, locked if the database locks rows. Raises NotFound."""
    job = session.get(JobRow, job_id, with_for_update=True)
    if job is None:
        raise queries.no_job(job_id)
    return job


def on_job(db: Database, job_id: str, change: Callable[[Session, JobRow], T]) -> T:
    """Run `change` on the job's locked row, as one write. Raises NotFound."""
    return db.write(lambda session: change(session, locked(session, job_id)))


_EPOCH = datetime.fromtimestamp(0, UTC)
_LAST = 16**13 // 10**6  # the last time that an id can express, in the year 2112


def id_at(moment: float, tail: int = 0) -> str:
    """Return an id that sorts by time: microseconds, then a tail of 44 bits (as in version 7 of RFC 9562)."""
    # Rounded like the time that users see, so that lists by time and by id agree.
    microseconds = (datetime.fromtimestamp(min(max(moment, 0.0), _LAST), UTC) - _EPOCH) // timedelta(microseconds=1)
    return f"job-{microseconds:013x}{tail:011x}"


#: The job that a key made, when, and by which request; `_KNOWN` locks the row, if the database locks rows.
_MADE = select(IdempotencyRow.job_id, IdempotencyRow.created_at, IdempotencyRow.request).where(
    IdempotencyRow.project == bindparam("project"),
    IdempotencyRow.owner == bindparam("owner"),
    IdempotencyRow.key == bindparam("key"),
)
_KNOWN = _MADE.with_for_update()

_JOBS, _LABELS, _TRIALS, _KEYS = insert(JobRow), insert(LabelRow), insert(TrialRow), insert(IdempotencyRow)
_TEXTS = insert(JobTextRow)


def add(
    session: Session,
    spec: JobSpec,
    *,
    by: Principal,
    key: str | None,
    now: float,
    key_s: float,
    quotas: Quotas,
    priors: Mapping[str, Prior] = MappingProxyType({}),
    best: Mapping[str, str | None] = MappingProxyType({}),
    source: str | None = None,
    request: str | None = None,
) -> tuple[JobRow, bool]:
    """Store a queued job with its trials, or find the one that `by` made with `key`. The flag says whether it is new.

    `source` is the job that was cloned, and `request` the digest of the request. `priors` are those that
    `transfer.priors` found before, as that takes too long for the one writer; so are the `best` trials that
    `starting_weights.best_trials` found. A key is forgotten after `key_s` seconds.
    If another replica stores the same key meanwhile, uniqueness fails and the writer runs this again.
    Raises QueueFull if the `quotas` let no more jobs wait.
    """
    scope = _scope(by, key)
    if key is not None:
        known = session.connection().execute(_KNOWN, scope).first()
        if known is not None and known.created_at > now - key_s:
            first = locked(session, known.job_id)
            return _first(first, known.request, spec, source=source, request=request), False
        if known is not None:
            session.execute(delete_from(IdempotencyRow).filter_by(**scope))
    require_place(session, quotas, by=by)
    code.use(session, spec, project=by.project, now=now)
    job = _add_row(session, spec, source=source, best=best, by=by, now=now)
    labels = [{"job_id": job.id, "name": name, "value": value} for name, value in spec.labels.items()]
    rows.add(session, _LABELS, *labels)
    rows.add(session, _TEXTS, {"job_id": job.id, "text": _text(job)})
    rows.add(session, _TRIALS, *trial_rows(job.id, spec, samples_of(spec), priors))
    if key is not None:
        rows.add(session, _KEYS, {**scope, "job_id": job.id, "created_at": now, "request": request})
    return job, True


def made_with(
    session: Session,
    key: str,
    *,
    by: Principal,
    spec: JobSpec | None,
    source: str | None,
    request: str | None,
    now: float,
    key_s: float,
) -> JobRow | None:
    """Return the job that `by` made with `key`. None if there is none, or only `add` can tell, by the `spec`.

    Raises KeyReused if the job was made from another request.
    """
    known = session.connection().execute(_MADE, _scope(by, key)).first()
    if known is None or known.created_at <= now - key_s or (spec is None and known.request is None):
        return None
    first = session.get(JobRow, known.job_id)
    return None if first is None else _first(first, known.request, spec, source=source, request=request)


def _scope(by: Principal, key: str | None) -> dict[str, str | None]:
    # Projects choose owners' names freely, so the same name in another project may be another person.
    return {"project": by.project, "owner": by.name, "key": key}


def _first(job: JobRow, known: str | None, spec: JobSpec | None, *, source: str | None, request: str | None) -> JobRow:
    """Return the job that a key made if the request is the same. Raises KeyReused.

    Requests are compared by digest if both have one, since the source of a clone may have changed. Otherwise the jobs
    and their sources are compared.
    """
    if known is not None and request is not None:
        is_again = known == request
    else:
        is_again = _submitted(job) == spec and job.source == source
    if not is_again:
        raise KeyReused(f"the key made `{job.id}` from another job or source; send a new key with a new job")
    return job


def _add_row(
    session: Session, spec: JobSpec, *, source: str | None, best: Mapping[str, str | None], by: Principal, now: float
) -> JobRow:
    """Return the job as its row will be. Adding it to the session would make a submission a fifth slower."""
    fields = {
        "id": id_at(now, secrets.randbits(44)), "name": spec.name, "owner": by.name, "project": by.project,
        "state": JobState.QUEUED.value, "reason": "", "spec": spec.model_dump(mode="json"), "attempt": 0, "notes": "",
        "archived": False, "version": 1, "created_at": now, "started_at": None, "finished_at": None,
        "deadline": _deadline(JobState.QUEUED, now), "priority": spec.priority.value, "queued_at": now,
        "source": source, "sees_all": visible_project(by) is None,
        "starting_weights": starting_weights.find(session, spec, project=visible_project(by), best=best),
    }  # fmt: skip
    rows.add(session, _JOBS, fields)
    job = JobRow(**fields)
    _tell(job, within=session)
    return job


def trial_rows(
    job_id: str, spec: JobSpec, samples: Mapping[str, Sample], priors: Mapping[str, Prior]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of the job's trials, in its order. `samples` and `priors` are by the names of samples and arms."""
    bill = Bill().model_dump(mode="json")
    for position, trial in enumerate(spec.trials()):
        prior = priors[trial.arm].model_dump(mode="json") if trial.arm in priors else None
        name = f"{job_id}.{trial.arm}.{trial.seed}"
        yield {
            "id": name, "job_id": job_id, "position": position, "arm": trial.arm, "seed": trial.seed, "bill": bill,
            "prior": prior, "sample": samples[trial.arm].model_dump(mode="json") if trial.arm in samples else None,
        }  # fmt: skip


def samples_of(spec: JobSpec) -> dict[str, Sample]:
    """Return the job's samples by name. They are drawn once, here, except those that learn from earlier trials."""
    if not spec.params:
        return {}
    drawn = designed(spec.params, spec.sweep_config)
    sampler = "random" if spec.sweep_config.sampler == "random" else "sobol"
    known = [Sample(number=number, values=values, drawn_by=sampler) for number, values in enumerate(drawn)]
    later = [Sample(number=at, values=None, drawn_by=None) for at in range(len(drawn), spec.num_samples)]
    return {sample_name(each.number): each for each in (*known, *later)}


def has_keys(session: Session, *, before: float) -> bool:
    """Return whether `forget_keys` has a key to delete."""
    return session.scalar(select(IdempotencyRow.key).where(_made(before)).limit(1)) is not None


def forget_keys(session: Session, *, before: float) -> None:
    """Delete the idempotency keys whose jobs were made before a time."""
    session.execute(delete_from(IdempotencyRow).where(_made(before)))


def _made(before: float) -> ColumnElement[bool]:
    # Uses the index on jobs, which their deletion needs, too. A key that was used again has a later job.
    return IdempotencyRow.job_id < id_at(before)


def _submitted(job: JobRow) -> JobSpec:
    """Return the job as it was first posted; raises UnreadableJob."""
    # reads jobs of earlier releases, which have fewer fields
    spec = stored_spec(job.id, {**job.spec, **(job.first_trials or {})})
    if job.first_budget is not None:
        spec = spec.model_copy(update={"budget": Budget.model_validate(job.first_budget)})
    if job.first_workers is not None:
        workers = spec.workers.model_copy(update={"count": job.first_workers})
        spec = spec.model_copy(update={"workers": workers})
    if job.first_labels is not None:
        spec = spec.model_copy(update={"labels": job.first_labels})
    if job.first_webhook is not None:
        webhook = Webhook.model_validate(job.first_webhook, extra="ignore") if job.first_webhook else None
        spec = spec.model_copy(update={"webhook": webhook})
    if job.first_priority is not None:
        spec = spec.model_copy(update={"priority": Priority(job.first_priority)})
    return spec


def transition(job: JobRow, to: JobState, *, now: float, reason: str = "") -> None:
    """Move `job` to another state, with a new deadline. Raises IllegalTransition."""
    if not may_follow(job.job_state, to):
        raise IllegalTransition(f"job `{job.id}` is {job.state}; it cannot become {to.value}")
    _enter(job, to, reason=reason, now=now)


def _enter(job: JobRow, to: JobState, *, reason: str, now: float) -> None:
    if to is JobState.QUEUED:
        job.queued_at = now - job.waited_s
    elif job.job_state is JobState.QUEUED:
        job.waited_s = now - job.queued_at
    job.state, job.reason = to.value, reason
    job.version += 1
    job.deadline, job.deadline_moved = _deadline(to, now), False
    if to is JobState.RUNNING and job.started_at is None:
        job.started_at = now
    job.finished_at = now if to in TERMINAL else None
    if to not in TERMINAL:
        job.archived = False
        if not job.extends:  # the result stands until the extension begins
            job.result = job.score = None
    _tell(job)
    if to in TERMINAL:
        messages.add(job, Occasion(to.value), reason=reason, now=now)


def _deadline(state: JobState, now: float) -> float | None:
    seconds = RULES[state].deadline_s
    return None if seconds is None else now + seconds


def move_deadline(job: JobRow, to: float) -> None:
    """Move the deadline of the job's state to a later time."""
    job.deadline, job.deadline_moved = to, True


def explain(job: JobRow, reason: str) -> None:
    """Set the reason why the job is still in its state. A changed reason makes a new version."""
    before, job.reason = job.reason, reason  # the row may cut it
    if job.reason != before:
        change(job)


def change(job: JobRow) -> None:
    """Make a new version of the job."""
    job.version += 1
    _tell(job)


def edit(session: Session, job: JobRow, patch: JobEdit) -> bool:
    """Apply the patch, and return whether it changed anything.

    Raises InvalidJob for too many labels. Raises IllegalTransition to archive an unfinished job, or to change the
    priority of a finished one.
    """
    before = _editable(job)
    if "labels" in patch.model_fields_set:
        _label(session, job, patch.labels)
    if "notes" in patch.model_fields_set:
        job.notes = patch.notes or ""
    if "archived" in patch.model_fields_set:
        if patch.archived:
            _require_over(job, "archived")
        job.archived = bool(patch.archived)
    if "priority" in patch.model_fields_set:
        _prioritize(job, patch.priority or Priority.NORMAL)
    if "webhook" in patch.model_fields_set:
        _tell_webhook(job, patch.webhook)
    if _editable(job) == before:
        return False
    session.merge(JobTextRow(job_id=job.id, text=_text(job)))
    change(job)
    return True


def _editable(job: JobRow) -> tuple[Any, ...]:
    """Return what of the job may be edited."""
    return job.spec["labels"], job.spec.get("webhook"), job.notes, job.archived, job.priority


def _text(job: JobRow) -> str:
    """Return the text that searches look in. Searched words have no spaces, so none matches across two lines."""
    labels: dict[str, str] = job.spec["labels"]
    return "\n".join([job.name, job.notes, *chain.from_iterable(labels.items()), *_methods(job.spec)]).lower()


def _methods(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield the job's workload, and the kinds of exchange, sync and optimizer of the job, its arms and its samples.

    Another release may have stored the job.
    """
    workload = spec.get("workload", {})
    yield str(workload.get("factory") or workload.get("kind", ""))
    samples = ({path: of.get("choice")} for path, of in spec.get("params", {}).items())
    for part in (spec, *spec.get("arms", ()), *samples):
        for name in ("exchange", "sync", "optimizer"):
            yield from _kinds(part.get(name))


def _kinds(part: Any) -> Iterator[str]:
    """Yield the kind of a part, and of each option that competes in it."""
    if isinstance(part, Mapping):
        yield str(part.get("kind", ""))
        yield from _kinds(part.get("options"))
    elif isinstance(part, list):
        yield from chain.from_iterable(map(_kinds, part))
    elif isinstance(part, str):
        yield part


def _prioritize(job: JobRow, priority: Priority) -> None:
    if job.job_state in TERMINAL:
        raise IllegalTransition(f"job `{job.id}` is {job.state}: it waits for nothing that a priority would change")
    if job.priority != priority:
        job.first_priority = job.first_priority or job.priority
        job.priority, job.spec = priority.value, {**job.spec, "priority": priority.value}


def _tell_webhook(job: JobRow, patch: WebhookPatch | None) -> None:
    """Give the job another webhook, or none. What the patch leaves out stays."""
    before: dict[str, Any] = job.spec.get("webhook") or {}
    after = patch and _patched(before, patch).model_dump(mode="json")
    job.first_webhook = before if job.first_webhook is None else job.first_webhook
    job.spec = {**job.spec, "webhook": after}


def _patched(webhook: dict[str, Any], patch: WebhookPatch) -> Webhook:
    merged = {**webhook, **patch.model_dump(mode="json", exclude_unset=True)}
    given = {name: value for name, value in merged.items() if value is not None}
    if "url" not in given:
        message = "a webhook needs a `url`; null in the webhook's place removes it"
        raise InvalidJob([Problem(pointer="/webhook/url", message=message)])
    return Webhook.model_validate(given, extra="ignore")


def _label(session: Session, job: JobRow, changes: dict[str, str | None] | None) -> None:
    before: dict[str, str] = job.spec["labels"]
    merged: dict[str, str | None] = {} if changes is None else {**before, **changes}
    after = {name: value for name, value in merged.items() if value is not None}
    if len(after) > MAX_LABELS:
        message = f"a job has at most {MAX_LABELS} labels; this would make {len(after)}"
        raise InvalidJob([Problem(pointer="/labels", message=message)])
    job.first_labels = before if job.first_labels is None else job.first_labels
    job.spec = {**job.spec, "labels": after}
    session.execute(delete_from(LabelRow).where(LabelRow.job_id == job.id))
    session.add_all(LabelRow(job_id=job.id, name=name, value=value) for name, value in after.items())


def delete(session: Session, job: JobRow, *, now: float) -> None:
    """Delete a finished job from the database. Its folder on storage is left for later removal.

    Raises IllegalTransition for an unfinished job, and for one from whose weights such a job starts.
    """
    _require_over(job, "deleted")
    starting_weights.require_unused(session, job)
    events.forget(session, job.id)
    events.tell(job, EventKind.JOB_DELETED, name=job.name)
    session.add(RemovalRow(job_id=job.id, created_at=now))
    session.delete(job)


def forget_removal(session: Session, job_id: str) -> None:
    """Record that the folder of a deleted job is gone."""
    session.execute(delete_from(RemovalRow).where(RemovalRow.job_id == job_id))


def _require_over(job: JobRow, done: str) -> None:
    if job.job_state in TERMINAL:
        return
    first = "`cancel` it first" if Verb.CANCEL in verbs_in(job.job_state) else "wait until it is cancelled"
    raise IllegalTransition(f"job `{job.id}` is {job.state}: only one that is over can be {done}; {first}")


def _tell(job: JobRow, *, within: Session | None = None) -> None:
    data = {"state": job.state, "reason": job.reason, "version": job.version, "attempt": job.attempt}
    events.tell(job, EventKind.JOB, within=within, **data, clocks=_clocks(job))


def _clocks(job: JobRow) -> dict[str, float]:
    """Return the training clocks of the job's running trials."""
    session = object_session(job)
    if session is None or not job.attempt:
        return {}
    begun = (TrialRow.job_id == job.id, TrialRow.backend.is_not(None), TrialRow.outcome.is_(None))
    found = session.execute(select(TrialRow.id, TrialRow.seconds).where(*begun))
    return {row.id: row.seconds for row in found}
