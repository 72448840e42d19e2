"""`/v1/methods`, `/v1/predictions`: the methods that a job can choose, and their predicted cost."""

from typing import Annotated

from fastapi import Depends, Query
from pydantic import AfterValidator

from api.http import bodies
from api.http.auth import require_key
from api.http.examples import EXAMPLE_JOB
from api.http.operations import Body, Operation, OperationRouter
from service.catalog import methods
from service.catalog.methods import DEFAULT_WORKLOAD, MAX_SHAPES, SHAPES
from service.control.access.rules import Action
from service.errors import NotFound
from service.prediction.predict import PredictionRequest, predict
from service.wire.methods import MethodsView
from service.wire.predictions import Prediction

router = OperationRouter(prefix="/v1", tags=["methods"], dependencies=[Depends(require_key)])


def _require_shapes(shapes: str | None) -> str | None:
    """Raise ValueError for shapes whose traffic cannot be predicted."""
    if shapes is not None:
        methods.parsed(shapes)
    return shapes


@router.serves("GET", "/methods", Operation(id="listMethods", action=Action.READ, errors=(NotFound,)))
def list_methods(
    name: Annotated[str | None, Query(description="only methods of this name")] = None,
    workload: Annotated[str, Query(description="the built-in workload whose traffic is predicted")] = DEFAULT_WORKLOAD,
    shapes: Annotated[
        str | None,
        AfterValidator(_require_shapes),
        Query(pattern=SHAPES, max_length=MAX_SHAPES, description="a model's shapes, not a workload's: 512x64,512"),
    ] = None,
    workers: Annotated[int, Query(ge=1, le=1024)] = 2,
) -> MethodsView:
    """Return the methods with their papers, knobs, combinations, and the predicted bytes of a worker per step."""
    return methods.methods(name, workload=workload, shapes=shapes, workers=workers)


_QUESTION = {"job": EXAMPLE_JOB, "compute_ms": 12.5, "mbps": 50, "latency_ms": 10, "workers": 8}


@router.serves(
    "POST",
    "/predictions",
    Operation(id="predict", action=Action.READ, body=Body(model=PredictionRequest, example=_QUESTION)),
)
def make_prediction(asked: Annotated[PredictionRequest, Depends(bodies.prediction_request)]) -> Prediction:
    """Predict the steps, the bytes and, if known, the time to a loss of every method that fits a job, on a link.

    This stores and trains nothing.
    """
    return predict(asked)
