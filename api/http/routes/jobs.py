"""`/v1/jobs`: submit, read, edit and delete jobs."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, TypeVar

from fastapi import Depends, Header, Query, Request, Response
from pydantic import AfterValidator, Field

from api.http import bodies
from api.http.admission import check, require_priority, require_webhook
from api.http.auth import Caller, require_key, require_visible
from api.http.dependencies import OutlookOf
from api.http.etags import UNCHANGED, IfNoneMatch, SeenVersions, etag_of, unchanged
from api.http.examples import EXAMPLE_JOB
from api.http.operations import Body, Operation, OperationRouter
from api.http.services import StoreOf
from service.control.access.rules import Action, Principal, may, visible_project
from service.control.listing import JobFilter
from service.control.queue.outlook import Outlook
from service.errors import (
    DoesNotFit,
    IllegalTransition,
    InvalidJob,
    KeyReused,
    NotFound,
    PreconditionFailed,
    QueueFull,
    UnreadableJob,
)
from service.job.advice import advice
from service.job.spec import JobSpec
from service.job.states import JobState
from service.job.sweep import expected_cost
from service.wire.access import MAX_OWNER_CHARS
from service.wire.base import MAX_PAGE
from service.wire.jobs import JobEdit, JobOrder, JobPage, JobSummary, JobView, Validated

router = OperationRouter(prefix="/v1", tags=["jobs"], dependencies=[Depends(require_key)])

JobBody = Annotated[JobSpec, Depends(bodies.job_spec)]
_JOB_BODY = Body(model=JobSpec, example=EXAMPLE_JOB, media_types=bodies.JOB_TYPES)

#: Refusals of operations that make a job.
CREATING = (InvalidJob, KeyReused, DoesNotFit, UnreadableJob, NotFound, QueueFull)

IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=200)]


@router.serves(
    "POST",
    "/jobs",
    Operation(
        id="createJob",
        action=Action.CREATE,
        errors=CREATING,
        body=_JOB_BODY,
        headers={202: ("Location",)},
        made_job="/id",
    ),
    status_code=202,
)
def create_job(
    spec: JobBody,
    store: StoreOf,
    request: Request,
    response: Response,
    caller: Caller,
    source: Annotated[str | None, Query(max_length=100, description="the original, if this job is a clone")] = None,
    idempotency_key: IdempotencyKey = None,
) -> JobView:
    """Queue a job. A repeated request with the same `Idempotency-Key` and job returns the first job."""
    require_visible([] if source is None else [source], store, caller)
    view = store.made_with(idempotency_key, spec=spec, source=source, by=caller)
    if view is None:  # an accepted job is not checked again: quotas and cluster may have changed
        require_priority(spec.priority, store, caller, operation="createJob")
        check(spec, request, caller.name, caller.project)
        view, _ = store.add_job(spec, idempotency_key=idempotency_key, source=source, by=caller)
    response.headers["Location"] = f"/v1/jobs/{view.id}"
    return view


@router.serves(
    "POST",
    "/jobs:validate",
    Operation(id="validateJob", action=Action.READ, errors=(InvalidJob, DoesNotFit, UnreadableJob), body=_JOB_BODY),
)
def validate_job(spec: JobBody, store: StoreOf, request: Request, caller: Caller) -> Validated:
    """Check a job without queueing it; the answer has every default filled in.

    The room in the queue is checked only at submission.
    """
    require_priority(spec.priority, store, caller)
    check(spec, request, caller.name, caller.project)
    store.require_named(spec, by=caller)
    num_trials = spec.num_trials
    notes = []
    if not may(caller, Action.CREATE):  # readers may check a job that someone else then submits
        notes.append(f"your role here, {caller.role}, may not {Action.CREATE}")
    if spec.params:
        notes.append(expected_cost(spec))
    elif num_trials > 1:
        count = f"{num_trials} trials ({len(spec.arms)} arms x {len(spec.seeds)} seeds)"
        notes.append(f"{count}, each with the whole budget")
    for arm, found in store.prior_jobs(spec, by=caller).items():
        learns = f"learns from {', '.join(found)}" if found else "has no past job to learn from, and starts without"
        notes.append(f"arm `{arm}` {learns}")
    return Validated(spec=spec, num_trials=num_trials, notes=tuple(notes), advice=advice(spec))


class Archived(StrEnum):
    """The place of archived jobs in a list."""

    NO = "false"
    YES = "true"
    ANY = "any"


_ARCHIVED = {Archived.NO: False, Archived.YES: True, Archived.ANY: None}
Label = Annotated[str, Field(pattern=r"^[^=]+=.*$", max_length=200)]
Shown = TypeVar("Shown", JobView, JobSummary)
#: A job's ETag is its version, which does not include the release. Each release reads stored jobs in its own way, so
#: no browser may keep the answer beyond an upgrade.
_NOT_KEPT = {"Cache-Control": "no-store"}
JobId = Annotated[str, Field(max_length=100)]
Pointer = Annotated[str, Field(pattern="^/", max_length=200)]
#: Of one list.
MAX_FIELDS = 50
Owner = Annotated[str | None, Query(min_length=1, max_length=MAX_OWNER_CHARS)]


def _in_utc(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


Moment = Annotated[datetime | None, AfterValidator(_in_utc)]


async def job_filter(
    state: Annotated[list[JobState], Query(description="any of these; several: state=failed&state=cancelled")] = [],  # noqa: B006  (FastAPI copies it)
    label: Annotated[list[Label], Query(max_length=16, description="name=value; several: all must match")] = [],  # noqa: B006
    ref: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=100,
            description="the beginning or end of the id, 4 characters or more, or the whole name",
        ),
    ] = None,
    text: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=100,
            description="words that must all occur in the name, the notes, a label, or what it trains: its workload, "
            "and its kinds of exchange, sync and optimizer",
        ),
    ] = None,
    owner: Owner = None,
    project: Owner = None,
    created_after: Annotated[Moment, Query(description="at this moment or later; UTC unless it has an offset")] = None,
    created_before: Annotated[Moment, Query(description="before this moment")] = None,
    archived: Annotated[Archived, Query(description="leave archived jobs out, list only them, or both")] = Archived.NO,
    id: Annotated[list[JobId], Query(max_length=MAX_PAGE, description="one of these; several: id=A&id=B")] = [],  # noqa: B006
) -> JobFilter:
    """Return the filter for jobs. Async although it never waits: FastAPI would run a plain function in a thread."""
    pairs = [(name, value) for name, _, value in (each.partition("=") for each in label)]
    return JobFilter(
        states=state,
        labels=pairs,
        ref=ref,
        text=text,
        owner=owner,
        project=project,
        created_after=created_after,
        created_before=created_before,
        archived=_ARCHIVED[archived],
        ids=id,
    )


@router.serves("GET", "/jobs", Operation(id="listJobs", action=Action.READ))
def list_jobs(
    store: StoreOf,
    caller: Caller,
    outlook: OutlookOf,
    where: Annotated[JobFilter, Depends(job_filter)],
    order_by: Annotated[
        JobOrder,
        Query(
            description="`-` reverses it; for `finished`, jobs that are not over count as the latest; `result` is the "
            "best first, and jobs without one count as the worst"
        ),
    ] = JobOrder.CREATED_DOWN,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    cursor: Annotated[
        str | None, Query(max_length=1000, description="`next_cursor` of the previous page, in the same order")
    ] = None,
    count: Annotated[bool, Query(description="with `total`, the number of jobs on all pages")] = False,
    progress: Annotated[bool, Query(description="with the progress of each job")] = False,
    field: Annotated[
        list[Pointer],
        Query(
            max_length=MAX_FIELDS,
            description="with a field of each spec: a JSON pointer such as `/optimizer/learning_rate`; repeatable",
        ),
    ] = [],  # noqa: B006
    bill: Annotated[bool, Query(description="with the bill of each job, over all its trials")] = False,
) -> JobPage:
    """Return the jobs that the caller sees, newest first unless `order_by` says otherwise."""
    page = store.jobs(
        where,
        order=order_by,
        limit=limit,
        cursor=cursor,
        count=count,
        with_progress=progress,
        with_bill=bill,
        pointers=field,
        by=caller,
    )
    return page.model_copy(update={"jobs": tuple(_placed(job, outlook, caller) for job in page.jobs)})


def _placed(job: Shown, outlook: Outlook, caller: Principal) -> Shown:
    """Return the job with its place in the queue."""
    if job.state is not JobState.QUEUED:
        return job
    return job.model_copy(update={"queue": outlook.place(job.id, project=visible_project(caller))})


@router.serves(
    "GET",
    "/jobs/{job}",
    Operation(id="getJob", action=Action.READ, headers={200: ("ETag",), 304: ("ETag",)}),
    response_model=JobView,
    responses=UNCHANGED,
)
def get_job(
    job: str, store: StoreOf, response: Response, caller: Caller, outlook: OutlookOf, if_none_match: IfNoneMatch = None
) -> JobView | Response:
    """Return one job. Its `ETag` changes with every change of its state or reason; verbs take it as `If-Match`.

    While a job waits, its `queue` changes more often: the answer is then sent in full, whatever `If-None-Match` says.
    """
    may_be_short = if_none_match is not None and outlook.place(job, project=None) is None
    if may_be_short and (short := unchanged(etag_of(store.version(job)), if_none_match)) is not None:
        short.headers.update(_NOT_KEPT)
        return short
    view = store.job(job)
    response.headers.update(_NOT_KEPT | {"ETag": etag_of(view.version)})
    return _placed(view, outlook, caller)


_EDIT = {"labels": {"team": "vision", "draft": None}, "notes": "the one for the paper"}


@router.serves(
    "PATCH",
    "/jobs/{job}",
    Operation(
        id="updateJob",
        action=Action.CHANGE,
        errors=(PreconditionFailed, IllegalTransition, InvalidJob),
        body=Body(model=JobEdit, example=_EDIT, media_types=bodies.CHANGES_TYPES),
        headers={200: ("ETag",)},
    ),
)
def update_job(
    job: str,
    patch: Annotated[JobEdit, Depends(bodies.job_edit)],
    store: StoreOf,
    versions: SeenVersions,
    caller: Caller,
    response: Response,
) -> JobView:
    """Edit a job's labels, notes, priority and webhook, archive it or bring it back: a JSON merge patch of these."""
    if patch.priority is not None:
        require_priority(patch.priority, store, caller, operation="updateJob", job=job)
    require_webhook(patch.webhook, store)
    view = store.edit(job, patch, versions=versions, by=caller)
    response.headers["ETag"] = etag_of(view.version)
    return view


@router.serves(
    "DELETE",
    "/jobs/{job}",
    Operation(id="deleteJob", action=Action.DELETE, errors=(PreconditionFailed, IllegalTransition)),
    status_code=204,
)
def delete_job(job: str, store: StoreOf, versions: SeenVersions, caller: Caller) -> None:
    """Delete a job that is over, with its metrics, stages, logs, checkpoints and weights."""
    store.delete(job, versions=versions, by=caller)
