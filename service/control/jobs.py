"""Make, move on and explain a job's row. Functions of one open transaction."""

import secrets

from sqlalchemy.orm import Session

from search.config import Budget
from service.control import code, events, messages, transfer
from service.control.access import Principal, visible_project
from service.control.models import IdempotencyRow, JobRow, LabelRow, TrialRow
from service.errors import IllegalTransition, KeyReused, NotFound
from service.job.spec import JobSpec
from service.job.states import RULES, TERMINAL, JobState, may_follow
from service.wire.records import Bill
from service.wire.views import EventKind


def require(session: Session, job_id: str) -> JobRow:
    """Return the job's row, locked where the database locks rows; raises NotFound."""
    job = session.get(JobRow, job_id, with_for_update=True)
    if job is None:
        raise NotFound(f"there is no job `{job_id}`")
    return job


def add(session: Session, spec: JobSpec, *, by: Principal, key: str | None, now: float) -> tuple[JobRow, bool]:
    """Store a queued job with its trials, or find the one that `by` made with `key`; the flag says which: made now.

    While another replica stores the same key this breaks the key's uniqueness; the writer then runs it again.
    """
    if key is not None and (known := session.get(IdempotencyRow, (by.name, key))) is not None:
        first = require(session, known.job_id)
        if _submitted(first) != spec:
            raise KeyReused(f"the key made `{first.id}` from another job; send a new key with a new job")
        return first, False
    code.use(session, spec, project=by.project, now=now)
    body = spec.model_dump(mode="json")
    # Sorts by age: microseconds, then 44 random bits (as RFC 9562's version 7).
    job_id = f"job-{int(now * 1e6):013x}{secrets.randbits(44):011x}"
    job = JobRow(id=job_id, name=spec.name, state=JobState.QUEUED.value, spec=body, version=0, created_at=now)
    job.owner, job.project = by.name, by.project
    session.add(job)
    _enter(job, JobState.QUEUED, reason="", now=now)
    session.flush()  # the rows below refer to it
    session.add_all(LabelRow(job_id=job.id, name=name, value=value) for name, value in spec.labels.items())
    bill, priors = Bill().model_dump(mode="json"), transfer.priors(session, spec, project=visible_project(by))
    session.add_all(
        TrialRow(
            id=f"{job.id}.{trial.arm}.{trial.seed}",
            job_id=job.id,
            position=position,
            arm=trial.arm,
            seed=trial.seed,
            bill=bill,
            prior=priors[trial.arm].model_dump(mode="json") if trial.arm in priors else None,
        )
        for position, trial in enumerate(spec.trials())
    )
    if key is not None:
        session.add(IdempotencyRow(owner=by.name, key=key, job_id=job.id, created_at=now))
    return job, True


def _submitted(job: JobRow) -> JobSpec:
    """Return the job as it was first posted."""
    spec = JobSpec.model_validate(job.spec)  # an earlier release may have written it with fewer fields
    if job.first_budget is not None:
        spec = spec.model_copy(update={"budget": Budget.model_validate(job.first_budget)})
    if job.first_workers is not None:
        workers = spec.workers.model_copy(update={"count": job.first_workers})
        spec = spec.model_copy(update={"workers": workers})
    return spec


def transition(job: JobRow, to: JobState, *, now: float, reason: str = "") -> None:
    """Move `job` on, with a new deadline; raises IllegalTransition."""
    if not may_follow(job.job_state, to):
        raise IllegalTransition(f"job `{job.id}` is {job.state}; it cannot become {to.value}")
    _enter(job, to, reason=reason, now=now)


def _enter(job: JobRow, to: JobState, *, reason: str, now: float) -> None:
    job.state, job.reason = to.value, reason
    job.version += 1
    deadline_s = RULES[to].deadline_s
    job.deadline = None if deadline_s is None else now + deadline_s
    if to is JobState.RUNNING and job.started_at is None:
        job.started_at = now
    job.finished_at = now if to in TERMINAL else None
    _tell(job)
    if to in TERMINAL:
        messages.add(job, now=now)


def explain(job: JobRow, reason: str) -> None:
    """Say why the job is still in its state; a new version of it, unless it was said before."""
    if job.reason != reason:
        job.reason = reason
        job.version += 1
        _tell(job)


def _tell(job: JobRow) -> None:
    events.tell(job, EventKind.JOB, state=job.state, reason=job.reason, version=job.version, attempt=job.attempt)
