"""Completes the OpenAPI document with what the routes read and refuse by themselves."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from api.http.problems import MEDIA_TYPE
from search.config import Budget
from service.errors import (
    Busy,
    CheckpointGone,
    CodeInUse,
    DoesNotFit,
    Fenced,
    Forbidden,
    IllegalTransition,
    InvalidJob,
    InvalidRequest,
    KeyGone,
    KeyReused,
    NotFound,
    OutOfSequence,
    PreconditionFailed,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    WiretuneError,
)
from service.job.spec import JobSpec
from service.wire.access import NewKey, SignIn
from service.wire.records import Batch, Lease
from service.wire.views import Changes, JobEdit, ProblemDocument

EXAMPLE_JOB: dict[str, Any] = {
    "name": "digits over a slow link",
    "workload": {"kind": "digits-mlp"},
    "workers": {"count": 2},
    "optimizer": {"kind": "schedulefree_sgd", "learning_rate": 0.1},
    "exchange": {"kind": "threshold", "density": [0.003, 0.1]},
    "controller": {"kind": "bo", "revisit": "events"},
    "arms": [
        {"name": "tuned"},
        {"name": "dense", "controller": {"kind": "fixed"}, "exchange": {"kind": "none"}},
    ],
    "budget": {"seconds": 40},
    "link": {"mode": "emulate", "mbps": 100, "latency_ms": 1},
}
#: Bodies that the routes parse themselves, so that a refusal can point at every field at fault.
_PARSED = (JobSpec, Budget, Changes, JobEdit, Batch, Lease, NewKey, SignIn, ProblemDocument)

#: Anybody who calls may be refused so.
CALLING = (Unauthorized, Forbidden, TooManyRequests, Unavailable)
READING = (*CALLING, NotFound, InvalidJob)
CREATING = (*CALLING, InvalidJob, KeyReused, DoesNotFit)
CHANGING = (*CALLING, NotFound, PreconditionFailed, IllegalTransition, CheckpointGone)
EXTENDING = (*CHANGING, InvalidJob)
EDITING = (*CALLING, NotFound, PreconditionFailed, IllegalTransition, InvalidJob)
DELETING = (*CALLING, NotFound, PreconditionFailed, IllegalTransition)
CLONING = (*CREATING, NotFound)
SIGNING_IN = (*CALLING, InvalidRequest)
HOLDING = (*SIGNING_IN, NotFound)
ROTATING = (*HOLDING, KeyGone)
UPLOADING = (*SIGNING_IN, Busy)
DELETING_CODE = (*CALLING, NotFound, CodeInUse)
REPORTING = (Unauthorized, NotFound, Fenced, OutOfSequence, InvalidJob, Unavailable)


def refusals(*errors: type[WiretuneError]) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route that may answer with `errors`."""
    titles: dict[int | str, list[str]] = {}
    for error in errors:
        titles.setdefault(error.status, []).append(f"{error.title} (`{error.slug}`)")
    return {status: _refusal("; ".join(found)) for status, found in titles.items()}


def _refusal(description: str) -> dict[str, Any]:
    schema = {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}
    return {"description": description, "content": {MEDIA_TYPE: schema}}


def body(model: str, *, example: Any, media_types: tuple[str, ...] = ("application/json",)) -> dict[str, Any]:
    """Return the `openapi_extra` of a route that reads a `model` out of its body."""
    content = {"schema": {"$ref": f"#/components/schemas/{model}"}, "example": example}
    return {
        "requestBody": {"required": True, "content": dict.fromkeys(media_types, content)},
        "responses": {"413": _refusal("The body is too long (`content-too-large`)")},
    }


def uploading(media_type: str) -> dict[str, Any]:
    """Return the `openapi_extra` of a route that reads a file out of its body."""
    schema = {"schema": {"type": "string", "format": "binary"}}
    return {
        "requestBody": {"required": True, "content": {media_type: schema}},
        "responses": {
            "413": _refusal("The body is too long (`content-too-large`)"),
            "415": _refusal("The body is something else (`unsupported-media-type`)"),
        },
    }


def file(media_type: str, what: str) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route that answers with a file."""
    return {200: {"description": what, "content": {media_type: {"schema": {"type": "string"}}}}}


def document(app: FastAPI) -> dict[str, Any]:
    """Return the app's OpenAPI 3.1 document; made once."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            separate_input_output_schemas=False,
        )
        _, parsed = models_json_schema(
            [(model, "validation") for model in _PARSED], ref_template="#/components/schemas/{model}"
        )
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        made["components"]["schemas"] = parsed["$defs"] | schemas
        _refuse_parameters_our_way(made)
        app.openapi_schema = made
    return app.openapi_schema


def _refuse_parameters_our_way(made: dict[str, Any]) -> None:
    """Put our refusal of a bad parameter in the place of FastAPI's, where a route has named none."""
    for name in ("HTTPValidationError", "ValidationError"):
        made["components"]["schemas"].pop(name, None)
    for operation in (each for methods in made["paths"].values() for each in methods.values()):
        refused = operation["responses"].get("422")  # every route refuses parameters that it does not have
        if refused is None or MEDIA_TYPE not in refused["content"]:
            operation["responses"]["422"] = _refusal("The request is not valid (`invalid-request`)")
