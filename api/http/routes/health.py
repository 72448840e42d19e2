"""`/healthz`, `/readyz`: is the process up, does it serve."""

from fastapi import APIRouter

from api.http.auth import StoreOf
from api.http.openapi import refusals
from service.errors import Unavailable

router = APIRouter(tags=["health"])


@router.get("/healthz", operation_id="health")
async def health() -> dict[str, str]:
    """Answer as long as the process does."""
    return {"status": "ok"}


@router.get("/readyz", operation_id="ready", responses=refusals(Unavailable))
def ready(store: StoreOf) -> dict[str, str]:
    """Answer once the database does."""
    store.answer()
    return {"status": "ready"}
