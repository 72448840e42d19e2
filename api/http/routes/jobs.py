"""`/v1/jobs`: submit, look."""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response

from api.http import bodies
from api.http.auth import Caller, StoreOf, require_key
from api.http.etags import UNCHANGED, IfNoneMatch, unchanged
from api.http.openapi import CREATING, EXAMPLE_JOB, READING, body, refusals
from service.control import permissions, webhooks
from service.errors import DoesNotFit, InvalidJob
from service.job.advice import advice
from service.job.problems import Problem
from service.job.spec import JobSpec
from service.job.states import JobState
from service.wire.views import JobPage, JobView, Validated

router = APIRouter(prefix="/v1", tags=["jobs"], dependencies=[Depends(require_key)])

#: What of a job the cluster can never place; nothing where that is not known.
Conflicts = Callable[[JobSpec], list[Problem]]
JobBody = Annotated[JobSpec, Depends(bodies.job_spec)]
_JOB_BODY = body("JobSpec", example=EXAMPLE_JOB, media_types=("application/json", "application/yaml"))


IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=200)]


@router.post("/jobs", status_code=202, operation_id="createJob", responses=refusals(*CREATING), openapi_extra=_JOB_BODY)
def create_job(
    spec: JobBody,
    store: StoreOf,
    request: Request,
    response: Response,
    caller: Caller,
    idempotency_key: IdempotencyKey = None,
) -> JobView:
    """Queue a job. The same `Idempotency-Key` with the same job gives the first job again."""
    check(spec, request)
    view, _ = store.add_job(spec, idempotency_key=idempotency_key, by=caller)
    response.headers["Location"] = f"/v1/jobs/{view.id}"
    return view


@router.post("/jobs:validate", operation_id="validateJob", responses=refusals(*CREATING), openapi_extra=_JOB_BODY)
def validate_job(spec: JobBody, store: StoreOf, request: Request, caller: Caller) -> Validated:
    """Check a job without queueing it; the answer has every default filled in."""
    check(spec, request)
    store.require_code(spec, by=caller)
    num_trials = len(spec.arms) * len(spec.seeds)
    notes = []
    if num_trials > 1:
        count = f"{num_trials} trials ({len(spec.arms)} arms x {len(spec.seeds)} seeds)"
        notes.append(f"{count}, each with the whole budget")
    for arm, found in store.prior_jobs(spec, by=caller).items():
        learns = f"learns from {', '.join(found)}" if found else "has no past job to learn from, and starts without"
        notes.append(f"arm `{arm}` {learns}")
    return Validated(spec=spec, num_trials=num_trials, notes=tuple(notes), advice=advice(spec))


@router.get("/jobs", operation_id="listJobs", responses=refusals(*READING))
def list_jobs(
    store: StoreOf,
    caller: Caller,
    state: JobState | None = None,
    label: Annotated[str | None, Query(pattern=r"^[^=]+=.*$", description="name=value")] = None,
    ref: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=100,
            description="that the id begins or ends with, 4 characters or more; else the whole name",
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: Annotated[str | None, Query(max_length=200, description="`next_cursor` of the page before")] = None,
) -> JobPage:
    """Return the jobs that the caller sees, newest first."""
    name, _, value = (label or "").partition("=")
    pair = (name, value) if label else None
    return store.jobs(state=state, label=pair, ref=ref, limit=limit, cursor=cursor, by=caller)


@router.get(
    "/jobs/{job}",
    operation_id="getJob",
    response_model=JobView,
    responses=UNCHANGED | refusals(*READING),
)
def get_job(job: str, store: StoreOf, response: Response, if_none_match: IfNoneMatch = None) -> JobView | Response:
    """Return one job. Its `ETag` changes with every change of its state or reason; verbs take it as `If-Match`."""
    if if_none_match is not None and (short := unchanged(_etag(store.version(job)), if_none_match)) is not None:
        return short
    view = store.job(job)
    response.headers["ETag"] = _etag(view.version)
    return view


def _etag(version: int) -> str:
    return f'"{version}"'


def require_permission(spec: JobSpec, request: Request) -> None:
    """Raise InvalidJob where the job brings along what the service that got the `request` does not allow."""
    if refused := permissions.conflicts(spec, user_code=request.app.state.user_code):
        raise InvalidJob(refused)


def check(spec: JobSpec, request: Request) -> None:
    """Raise InvalidJob or DoesNotFit where the service that got the `request` cannot take the job."""
    require_permission(spec, request)
    if refused := webhooks.conflicts(spec, request.app.state.store.settings):
        raise InvalidJob(refused)
    problems: list[Problem] = request.app.state.conflicts(spec)
    if problems:
        raise DoesNotFit("; ".join(problem.message for problem in problems), problems)
