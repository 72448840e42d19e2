"""`/healthz`, `/readyz`, `/metrics`: liveness, readiness and metrics of the process."""

from anyio import to_thread
from fastapi import Depends
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from api.http.auth import require_key
from api.http.dependencies import VitalThreads
from api.http.operations import Operation, OperationRouter
from api.http.services import StoreOf
from service.control.access.rules import Action
from service.errors import Unavailable

router = OperationRouter(tags=["health"])


@router.serves("GET", "/healthz", Operation(id="health", action=None))
async def health() -> dict[str, str]:
    """Answer as long as the process runs."""
    return {"status": "ok"}


@router.serves("GET", "/readyz", Operation(id="ready", action=None, errors=(Unavailable,)))
async def ready(store: StoreOf, threads: VitalThreads) -> dict[str, str]:
    """Answer once the database answers."""
    await to_thread.run_sync(store.answer, limiter=threads)
    return {"status": "ready"}


@router.serves(
    "GET",
    "/metrics",
    Operation(id="getMetrics", action=Action.READ_METRICS),
    response_class=PlainTextResponse,
    dependencies=[Depends(require_key)],
)
def metrics(store: StoreOf) -> PlainTextResponse:
    """Return the metrics in Prometheus' text format. The scraper needs a key with the role `operator`."""
    return PlainTextResponse(store.telemetry.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)
