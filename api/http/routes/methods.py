"""`/v1/methods`: what a job can choose."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import AfterValidator

from api.http.auth import require_key
from api.http.openapi import READING, refusals
from service.catalog import methods
from service.catalog.methods import DEFAULT_WORKLOAD, MAX_SHAPES, SHAPES, MethodsView

router = APIRouter(prefix="/v1", tags=["methods"], dependencies=[Depends(require_key)], responses=refusals(*READING))


def _require_shapes(shapes: str | None) -> str | None:
    """Raise ValueError for shapes of which no traffic can be told."""
    if shapes is not None:
        methods.parsed(shapes)
    return shapes


@router.get("/methods", operation_id="listMethods")
def list_methods(
    name: Annotated[str | None, Query(description="only those called so")] = None,
    workload: Annotated[str, Query(description="a built-in one, whose traffic is predicted")] = DEFAULT_WORKLOAD,
    shapes: Annotated[
        str | None,
        AfterValidator(_require_shapes),
        Query(pattern=SHAPES, max_length=MAX_SHAPES, description="of a model's parameters, in its place: 512x64,512"),
    ] = None,
    workers: Annotated[int, Query(ge=1, le=1024)] = 2,
) -> MethodsView:
    """Return the methods: papers, knobs, what goes with what, and what a worker is predicted to send in a step."""
    return methods.methods(name, workload=workload, shapes=shapes, workers=workers)
