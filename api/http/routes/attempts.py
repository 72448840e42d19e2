"""`/v1/attempts/...`: the one door of the cluster, open to a running attempt's own token."""

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Depends

from api.http import bodies
from api.http.auth import Number, require_token
from api.http.dependencies import VitalThreads
from api.http.openapi import REPORTING, body, error_answers
from api.http.services import StoreOf
from service.wire.records import Acknowledgement, AttemptBrief, Batch

router = APIRouter(
    prefix="/v1/attempts/{job}/{number}",
    tags=["attempts"],
    dependencies=[Depends(require_token)],
    responses=error_answers(*REPORTING),
)


# HTTP clients with a base URL ask for its root with a slash.
@router.get("/", include_in_schema=False)
@router.get("", operation_id="getAttempt")
async def get_attempt(job: str, number: Number, store: StoreOf, threads: VitalThreads) -> AttemptBrief:
    """Return what a fresh attempt needs: the job, where to write, and where earlier attempts got to."""
    return await to_thread.run_sync(store.attempts.brief, job, number, limiter=threads)


@router.post(
    "/records",
    operation_id="addRecords",
    openapi_extra=body("Batch", example={"stream": "driver", "sequence": 1, "records": []}),
)
async def add_records(
    job: str, number: Number, batch: Annotated[Batch, Depends(bodies.batch)], store: StoreOf, threads: VitalThreads
) -> Acknowledgement:
    """Store a batch of records; a batch that comes twice counts once."""
    return await to_thread.run_sync(store.attempts.ingest, job, number, batch, limiter=threads)


@router.post(
    "/lease",
    operation_id="renewLease",
    openapi_extra=body("Lease", example={"schema_version": 1}),
    dependencies=[Depends(bodies.lease)],
)
async def renew_lease(job: str, number: Number, store: StoreOf, threads: VitalThreads) -> Acknowledgement:
    """Keep the attempt's lease; the answer says whether to go on."""
    return await to_thread.run_sync(store.attempts.renew, job, number, limiter=threads)
