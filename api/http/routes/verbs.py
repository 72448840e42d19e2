"""`/v1/jobs/{job}:VERB`: the actions on an existing job."""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Query, Request, Response
from pydantic import ValidationError

from api.documents import checked
from api.http import bodies
from api.http.admission import allowed_to, check, require_permission, require_priority
from api.http.auth import Caller, require_key
from api.http.dependencies import Slot
from api.http.etags import SeenVersions
from api.http.operations import Answers, Body, Operation, OperationRouter
from api.http.routes.jobs import CREATING, IdempotencyKey
from api.http.services import StoreOf
from service.control.access.rules import Action
from service.control.results import ranking
from service.control.store import Store
from service.errors import (
    Busy,
    CheckpointGone,
    DoesNotFit,
    IllegalTransition,
    InvalidJob,
    InvalidRequest,
    PreconditionFailed,
    UnreadableJob,
)
from service.job.changes import differences, of_trial, patched
from service.job.parts import BEST_TRIAL
from service.job.problems import Problem
from service.job.spec import JobSpec
from service.wire.jobs import Changes, Cloned, Extension, JobView
from service.wire.steering import SteeringView, SteerRequest

router = OperationRouter(prefix="/v1/jobs", tags=["jobs"], dependencies=[Depends(require_key)])

_DRY_RUN: Answers = {200: {"model": Cloned, "description": "A dry run"}}
_ENDING = (PreconditionFailed, IllegalTransition, CheckpointGone)
_GOING_ON = (*_ENDING, InvalidJob, DoesNotFit, UnreadableJob)
_NO_BODY = [Depends(bodies.nothing)]


def require_place(
    job: str,
    store: StoreOf,
    request: Request,
    workers: Annotated[int | None, Query(ge=1, le=1024, description="per training run, from now on")] = None,
) -> int | None:
    """Return the number of workers with which the job continues.

    Raises InvalidJob if the job needs something that the service does not allow (any more), DoesNotFit if it can never
    be placed, and UnreadableJob if this release cannot read it.
    """
    spec = store.job(job).readable
    if workers is None:
        require_permission(spec, request)
    else:
        changed = checked(JobSpec, patched(spec.model_dump(mode="json"), {"workers": {"count": workers}}))
        owned = store.owner_of(job)
        check(changed, request, owned.owner, owned.project)
    return workers


Workers = Annotated[int | None, Depends(require_place)]


@router.serves(
    "POST",
    "/{job}:pause",
    Operation(id="pauseJob", action=Action.CHANGE, errors=_ENDING),
    status_code=202,
    dependencies=_NO_BODY,
)
def pause_job(job: str, store: StoreOf, versions: SeenVersions, caller: Caller) -> JobView:
    """Pause a job: it writes a checkpoint and releases its resources. A queued job keeps its place."""
    return store.pause(job, versions=versions, by=caller)


@router.serves(
    "POST",
    "/{job}:resume",
    Operation(id="resumeJob", action=Action.CHANGE, errors=_GOING_ON),
    status_code=202,
    dependencies=_NO_BODY,
)
def resume_job(job: str, store: StoreOf, workers: Workers, versions: SeenVersions, caller: Caller) -> JobView:
    """Queue a paused job again at its old place; it continues from its checkpoint."""
    return store.resume(job, workers=workers, versions=versions, by=caller)


@router.serves(
    "POST",
    "/{job}:stop",
    Operation(id="stopJob", action=Action.CHANGE, errors=_ENDING),
    status_code=202,
    dependencies=_NO_BODY,
)
def stop_job(job: str, store: StoreOf, versions: SeenVersions, caller: Caller) -> JobView:
    """End a job that has run as if its budget were spent, with its result so far."""
    return store.stop(job, versions=versions, by=caller)


@router.serves(
    "POST",
    "/{job}/trials/{trial}:stop",
    Operation(id="stopTrial", action=Action.CHANGE, errors=(PreconditionFailed, IllegalTransition)),
    status_code=202,
    dependencies=_NO_BODY,
)
def stop_trial(job: str, trial: str, store: StoreOf, versions: SeenVersions, caller: Caller) -> JobView:
    """End one trial of a job early, with its result so far; the others go on. One that has not begun is left out."""
    return store.stop_trial(job, trial, versions=versions, by=caller)


@router.serves(
    "POST",
    "/{job}:cancel",
    Operation(id="cancelJob", action=Action.CHANGE, errors=_ENDING),
    status_code=202,
    dependencies=_NO_BODY,
)
def cancel_job(job: str, store: StoreOf, versions: SeenVersions, caller: Caller) -> JobView:
    """Cancel a job: a waiting one ends at once, a live one as soon as its driver hears of it."""
    return store.cancel(job, versions=versions, by=caller)


@router.serves(
    "POST",
    "/{job}:retry",
    Operation(id="retryJob", action=Action.CHANGE, errors=(*_GOING_ON, Busy)),
    status_code=202,
    dependencies=_NO_BODY,
)
def retry_job(job: str, store: StoreOf, workers: Workers, versions: SeenVersions, caller: Caller, _: Slot) -> JobView:
    """Queue a failed or cancelled job again. It continues from its last checkpoint, with new attempts."""
    return store.retry(job, workers=workers, versions=versions, by=caller)


@router.serves(
    "POST",
    "/{job}:extend",
    Operation(
        id="extendJob",
        action=Action.CHANGE,
        errors=(*_GOING_ON, Busy),
        body=Body(model=Extension, example={"seconds": 80}),
    ),
    status_code=202,
)
def extend_job(
    job: str,
    asked: Annotated[Extension, Depends(bodies.extension)],
    store: StoreOf,
    workers: Workers,
    versions: SeenVersions,
    caller: Caller,
    _: Slot,
) -> JobView:
    """Give a job that succeeded a larger budget, further seeds or more samples. `reason` says where trials continue."""
    if asked.samples is not None and (spec := store.job(job).readable).params:  # as at a submission, outside the write
        checked(JobSpec, patched(spec.model_dump(mode="json"), {"sweep": {"samples": asked.samples}}))
    more: dict[str, Any] = {"seeds": asked.seeds or (), "samples": asked.samples}
    return store.extend(job, asked.budget, **more, workers=workers, versions=versions, by=caller)


_STEER = {"pin": {"density": 0.02}, "veto": {"learning_rate": {"above": 0.1}}}


@router.serves(
    "POST",
    "/{job}:steer",
    Operation(
        id="steerJob",
        action=Action.CHANGE,
        errors=(PreconditionFailed, IllegalTransition, InvalidJob, UnreadableJob),
        body=Body(model=SteerRequest, example=_STEER),
    ),
    status_code=202,
)
def steer_job(
    job: str,
    asked: Annotated[SteerRequest, Depends(bodies.steer_request)],
    store: StoreOf,
    versions: SeenVersions,
    caller: Caller,
) -> JobView:
    """Pin or veto values of a job's controllers, or ask for a search: from the next stage of each trial on."""
    return store.steer(job, asked, versions=versions, by=caller)


@router.serves("GET", "/{job}/steering", Operation(id="getSteering", action=Action.READ, errors=(UnreadableJob,)))
def get_steering(job: str, store: StoreOf) -> SteeringView:
    """Return the steers of a job, the stages from which they hold, and the values that may be steered."""
    return store.steering(job)


@router.serves(
    "POST",
    "/{job}:clone",
    Operation(
        id="cloneJob",
        action=Action.CREATE,
        errors=CREATING,
        body=Body(model=Changes, example={"budget": {"seconds": 80}}, media_types=bodies.CHANGES_TYPES),
        headers={202: ("Location",)},
        made_job="/job/id",
    ),
    status_code=202,
    responses=_DRY_RUN,
)
def clone_job(
    job: str,
    changes: Annotated[dict[str, Any], Depends(bodies.changes)],
    store: StoreOf,
    request: Request,
    response: Response,
    caller: Caller,
    trial: Annotated[
        str | None,
        Query(max_length=200, description="copy what this arm or sample trains: `sample-3`, `best`; or a trial's id"),
    ] = None,
    dry_run: Annotated[bool, Query(description="only show what would differ")] = False,
    idempotency_key: IdempotencyKey = None,
) -> Cloned:
    """Queue a copy of this job with changes, a JSON merge patch. Pointers in errors lead into the changed job.

    The webhook of another owner's job is not copied.
    """
    view, asked = store.job(job), _digest(job, changes, trial)
    source = view.readable
    made = None if dry_run else store.made_with(idempotency_key, request=asked, by=caller)
    if made is None:
        base = source.model_dump(mode="json") if trial is None else _of_trial(store, job, source, trial)
        if (view.owner, view.project) != (caller.name, caller.project):
            base["webhook"] = None  # its owner would be told of another person's job
        spec = checked(JobSpec, patched(base, changes))
        spec = spec if "priority" in changes else allowed_to(caller, spec)
        require_priority(spec.priority, store, caller, operation="cloneJob", job=job)
        check(spec, request, caller.name, caller.project)
        store.require_named(spec, by=caller)
        if not dry_run:
            made, _ = store.add_job(spec, idempotency_key=idempotency_key, source=job, request=asked, by=caller)
    else:
        spec = made.readable
    if made is None:
        response.status_code = 200
    else:
        response.headers["Location"] = f"/v1/jobs/{made.id}"
    return Cloned(source=job, changes=differences(source, spec), spec=spec, job=made)


def _of_trial(store: Store, job: str, spec: JobSpec, name: str) -> dict[str, Any]:
    """Return the job that trains what the trial of this name or id trains. Raises InvalidRequest."""
    trials = store.trials(job)
    named = ranking.chosen(trials, name, None, lambda: store.report(job).best_trial)
    found = next(iter(named or [each for each in trials if each.trial_id == name]), None)
    if found is None:
        best = "; `best` is known once all trials have finished" if name == BEST_TRIAL else ""
        message = f"the job has no arm, sample or trial `{name}`{best}"
    elif found.sample is not None and found.sample.values is None:
        message = f"`{found.arm}` has no values yet: they are drawn when it begins"
    else:
        try:
            return of_trial(spec, found.arm, None if found.sample is None else found.sample.values)
        except ValidationError:  # an earlier release drew them
            message = f"`{found.arm}` has values that this release does not accept"
    raise InvalidRequest([Problem(pointer="/trial", message=message, value=name)])


def _digest(source: str, changes: Mapping[str, Any], trial: str | None) -> str:
    """Return a digest that identifies a request for a clone, as earlier releases computed it if it names no trial."""
    asked = [source, changes] if trial is None else [source, changes, trial]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
