"""`/v1/attempts/...`: the only routes for the cluster, open to a running attempt with its own token."""

from functools import partial
from typing import Annotated

from anyio import to_thread
from fastapi import Depends

from api.http import bodies
from api.http.auth import Number, require_token
from api.http.dependencies import VitalThreads
from api.http.operations import Body, Operation, OperationRouter
from api.http.services import StoreOf
from service.errors import (
    Fenced,
    InvalidJob,
    NotFound,
    OutOfSequence,
    Unauthorized,
    Unavailable,
    UnreadableJob,
)
from service.wire.records import Acknowledgement, AttemptBrief, Batch, Lease

router = OperationRouter(prefix="/v1/attempts/{job}/{number}", tags=["attempts"], dependencies=[Depends(require_token)])

_REPORTING = (Unauthorized, NotFound, Fenced, OutOfSequence, UnreadableJob, InvalidJob, Unavailable)
_BATCH = {"stream": "driver", "sequence": 1, "records": []}
_LEASE = {"held_s": 65.0}


# HTTP clients with a base URL ask for its root with a slash.
@router.get("/", include_in_schema=False)
@router.serves("GET", "", Operation(id="getAttempt", action=None, errors=_REPORTING))
async def get_attempt(job: str, number: Number, store: StoreOf, threads: VitalThreads) -> AttemptBrief:
    """Return what a new attempt needs: the job, the place to write to, and the progress of earlier attempts."""
    return await to_thread.run_sync(store.attempts.brief, job, number, limiter=threads)


@router.serves(
    "POST",
    "/records",
    Operation(id="addRecords", action=None, errors=_REPORTING, body=Body(model=Batch, example=_BATCH)),
)
async def add_records(
    job: str, number: Number, batch: Annotated[Batch, Depends(bodies.batch)], store: StoreOf, threads: VitalThreads
) -> Acknowledgement:
    """Store a batch of records. A repeated batch counts once."""
    return await to_thread.run_sync(store.attempts.ingest, job, number, batch, limiter=threads)


@router.serves(
    "POST",
    "/lease",
    Operation(id="renewLease", action=None, errors=_REPORTING, body=Body(model=Lease, example=_LEASE)),
)
async def renew_lease(
    job: str, number: Number, lease: Annotated[Lease, Depends(bodies.lease)], store: StoreOf, threads: VitalThreads
) -> Acknowledgement:
    """Renew the attempt's lease. The answer says whether to go on."""
    renew = partial(store.attempts.renew, job, number, held_s=lease.held_s)
    return await to_thread.run_sync(renew, limiter=threads)
