"""Completes the OpenAPI document with what the routes read and refuse by themselves."""

import re
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from api.http import examples
from api.http.problems import MEDIA_TYPE, ProblemDocument
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
    QueueFull,
    TooManyRequests,
    TooMuchCode,
    Unauthorized,
    Unavailable,
    UnreadableJob,
    WiretuneError,
)
from service.job.spec import JobSpec
from service.prediction.predict import PredictionRequest
from service.wire.access import NewKey, SignIn
from service.wire.jobs import Changes, JobEdit
from service.wire.queue import QuotaLimits
from service.wire.records import Batch, Lease
from service.wire.steering import SteerRequest

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
_PARSED = (
    JobSpec, Budget, Changes, JobEdit, SteerRequest, Batch, Lease, NewKey, SignIn, QuotaLimits, PredictionRequest,
    ProblemDocument,
)  # fmt: skip

#: Anybody who calls may be refused so.
CALLING = (Unauthorized, Forbidden, TooManyRequests, Unavailable)
READING = (*CALLING, NotFound)
VALIDATING = (*CALLING, InvalidJob, DoesNotFit, UnreadableJob)
CHANGING = (*CALLING, NotFound, PreconditionFailed, IllegalTransition, CheckpointGone)
EXTENDING = (*CHANGING, InvalidJob)
EDITING = (*CALLING, NotFound, PreconditionFailed, IllegalTransition, InvalidJob)
DELETING = (*CALLING, NotFound, PreconditionFailed, IllegalTransition)
CLONING = (*CALLING, InvalidJob, KeyReused, DoesNotFit, UnreadableJob, NotFound, QueueFull)
ROTATING = (*READING, KeyGone)
UPLOADING = (*CALLING, Busy, TooMuchCode)
DELETING_CODE = (*CALLING, NotFound, CodeInUse, Busy)
REPORTING = (Unauthorized, NotFound, Fenced, OutOfSequence, UnreadableJob, InvalidJob, Unavailable)


#: The headers of answers, and which have them.
_HEADERS = {
    "ETag": "changes with what is answered: for `If-None-Match`, and a job's for `If-Match`",
    "Location": "the path of what was made",
    "Retry-After": "seconds after which to try again",
    "WWW-Authenticate": "the scheme of keys",
    "Content-Disposition": "the file's name",
    "Accept-Ranges": "`bytes`: one `Range` is answered with 206",
    "Content-Range": "which bytes of the file these are; of a range that it does not have, how many it has",
    "Repr-Digest": "the file's SHA-256 (RFC 9530), where it is known",
    "X-Log-Offset": "where in the log the answer begins, in bytes",
    "Set-Cookie": "the session",
}
_OF_STATUS = {"401": ["WWW-Authenticate"], "429": ["Retry-After"], "503": ["Retry-After"]}
_OF_FILES = ["ETag", "Content-Disposition", "Repr-Digest", "Accept-Ranges"]
_OF_OPERATION = {
    **{(name, status): ["Location"] for name, status in (("createJob", "202"), ("cloneJob", "202"))},
    **{(name, "201"): ["Location"] for name in ("createKey", "createCode")},
    **{(name, status): ["ETag"] for name in ("getJob", "getSnapshot") for status in ("200", "304")},
    **{(name, "200"): _OF_FILES for name in ("getWeights", "getFile")},
    **{(name, "206"): [*_OF_FILES, "Content-Range"] for name in ("getWeights", "getFile")},
    **{(name, "304"): ["ETag"] for name in ("getWeights", "getFile")},
    **{(name, "416"): ["Content-Range"] for name in ("getWeights", "getFile")},
    ("updateJob", "200"): ["ETag"],
    ("exportMetrics", "200"): ["Content-Disposition"],
    ("getLogs", "200"): ["X-Log-Offset"],
    ("createSession", "204"): ["Set-Cookie"],
}
#: Where in its answer the id of a job is that an operation makes.
_MADE_JOB = {"createJob": "/id", "cloneJob": "/job/id"}


def error_answers(*errors: type[WiretuneError]) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route that may answer with `errors`."""
    titles: dict[int | str, list[str]] = {}
    for error in errors:
        titles.setdefault(error.status, []).append(_titled(error))
    return {status: refusal("; ".join(found)) for status, found in titles.items()}


def _titled(error: type[WiretuneError]) -> str:
    return f"{error.title} (`{error.slug}`)"


def refusal(description: str) -> dict[str, Any]:
    """Return the answer of a route that refuses with a problem document."""
    schema = {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}
    return {"description": description, "content": {MEDIA_TYPE: schema}}


#: Of a body, whatever is in it.
_BODY_REFUSALS = {
    "408": refusal("The body did not arrive in time (`request-timeout`)"),
    "413": refusal("The body is too long (`content-too-large`)"),
    "415": refusal("The body is something else (`unsupported-media-type`)"),
}


def body(model: str, *, example: Any, media_types: tuple[str, ...] = ("application/json",)) -> dict[str, Any]:
    """Return the `openapi_extra` of a route that reads a `model` out of its body."""
    content = {"schema": {"$ref": f"#/components/schemas/{model}"}, "example": example}
    return {
        "requestBody": {"required": True, "content": dict.fromkeys(media_types, content)},
        "responses": _BODY_REFUSALS,
    }


def uploading(media_type: str) -> dict[str, Any]:
    """Return the `openapi_extra` of a route that reads a file out of its body."""
    schema = {"schema": {"type": "string", "format": "binary"}}
    return {
        "requestBody": {"required": True, "content": {media_type: schema}},
        "responses": _BODY_REFUSALS,
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
        made["components"]["schemas"]["JobSpec"]["examples"] = [EXAMPLE_JOB, *examples.JOBS]
        _refuse_parameters_our_way(made)
        _show_examples(made)
        _name_headers(made)
        _link_jobs(made)
        app.openapi_schema = made
    return app.openapi_schema


def _operations(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for methods in made["paths"].values():
        yield from methods.values()


def _show_examples(made: dict[str, Any]) -> None:
    """Give each answer of a schema that has an example that one."""
    known, shown = examples.answers(EXAMPLE_JOB), made["components"].setdefault("examples", {})
    for operation in _operations(made):
        for answer in operation["responses"].values():
            for content in answer.get("content", {}).values():
                schema = content.get("schema", {})
                one, several = (_schema_name(each) for each in (schema, schema.get("items", {})))
                name = one or f"{several}List"
                if one in known or several in known:
                    shown[name] = {"value": known[one] if one else [known[several]]}
                    content["examples"] = {"example": {"$ref": f"#/components/examples/{name}"}}


def _schema_name(schema: dict[str, Any]) -> str:
    name: str = schema.get("$ref", "").rpartition("/")[2]
    return name


def _name_headers(made: dict[str, Any]) -> None:
    """Name the headers of answers: those of every refusal of a kind, and those of single operations."""
    made["components"]["headers"] = {
        name: {"description": about, "schema": {"type": "string"}} for name, about in _HEADERS.items()
    }
    for operation in _operations(made):
        for status, answer in operation["responses"].items():
            names = [*_OF_STATUS.get(status, ()), *_OF_OPERATION.get((operation["operationId"], status), ())]
            if names:
                answer["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _link_jobs(made: dict[str, Any]) -> None:
    """Link what makes a job to all that can be done with it."""
    about = [
        operation["operationId"]
        for path, methods in made["paths"].items()
        if re.findall(r"{(\w+)}", path) == ["job"]
        for operation in methods.values()
    ]
    for operation in _operations(made):
        if (place := _MADE_JOB.get(operation["operationId"])) is not None:
            operation["responses"]["202"]["links"] = {
                name: {"operationId": name, "parameters": {"job": f"$response.body#{place}"}} for name in about
            }


def _refuse_parameters_our_way(made: dict[str, Any]) -> None:
    """Name our refusal of a bad parameter, which every route may give, in the place of FastAPI's."""
    for name in ("HTTPValidationError", "ValidationError"):
        made["components"]["schemas"].pop(name, None)
    for operation in _operations(made):
        answers = operation["responses"]
        refused = answers.get("422", {"content": {}})
        named = [refused["description"]] if MEDIA_TYPE in refused["content"] else []
        answers["422"] = refusal("; ".join([*named, _titled(InvalidRequest)]))
        operation["responses"] = dict(sorted(answers.items()))
