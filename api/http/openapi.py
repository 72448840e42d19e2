"""Completes the OpenAPI document: bodies that routes read themselves, examples, headers and links."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from api.http import examples
from api.http.examples import EXAMPLE_JOB
from api.http.operations import Operation
from api.http.problems import ProblemDocument

#: The headers of answers.
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
    "X-Log-End": "where in the log the answer ends, in bytes: what is printed later begins there",
    "Set-Cookie": "the session",
}
#: Headers of every refusal, by status.
_OF_STATUS = {"401": ("WWW-Authenticate",), "429": ("Retry-After",), "503": ("Retry-After",)}


def document(about: Mapping[str, Any], routes: Sequence[BaseRoute], operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of `routes`, whose operations these are; `about` are its title and so on."""
    made = get_openapi(**about, routes=routes, separate_input_output_schemas=False)
    _, parsed = models_json_schema(
        [(model, "validation") for model in _parsed(operations)], ref_template="#/components/schemas/{model}"
    )
    schemas = made.setdefault("components", {}).setdefault("schemas", {})
    made["components"]["schemas"] = parsed["$defs"] | schemas
    made["components"]["schemas"]["JobSpec"]["examples"] = [EXAMPLE_JOB, *examples.JOBS]
    _show_examples(made)
    _name_headers(made, {each.id: each for each in operations})
    _link_jobs(made, {each.id: each.made_job for each in operations if each.made_job is not None})
    for operation in _operations(made):
        operation["responses"] = dict(sorted(operation["responses"].items()))
    return made


def _parsed(operations: Sequence[Operation]) -> Iterator[type[BaseModel]]:
    """Yield the models of bodies, which FastAPI does not see, and of refusals."""
    models = (each.body.model for each in operations if each.body is not None)
    yield from (model for model in dict.fromkeys(models) if model is not None)
    yield ProblemDocument


def _operations(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for methods in made["paths"].values():
        yield from methods.values()


def _show_examples(made: dict[str, Any]) -> None:
    """Add its schema's example, if there is one, to each answer."""
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


def _name_headers(made: dict[str, Any], operations: Mapping[str, Operation]) -> None:
    """Name the headers of answers: of all refusals with a status, and of single operations."""
    made["components"]["headers"] = {
        name: {"description": about, "schema": {"type": "string"}} for name, about in _HEADERS.items()
    }
    for operation in _operations(made):
        of_operation = operations[operation["operationId"]].headers
        for status, answer in operation["responses"].items():
            names = (*_OF_STATUS.get(status, ()), *of_operation.get(int(status), ()))
            if names:
                answer["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _link_jobs(made: dict[str, Any], places: Mapping[str, str]) -> None:
    """Link each operation that makes a job to all operations on that job; a pointer finds the id in the answer."""
    about = [
        operation["operationId"]
        for path, methods in made["paths"].items()
        if re.findall(r"{(\w+)}", path) == ["job"]
        for operation in methods.values()
    ]
    for operation in _operations(made):
        if (place := places.get(operation["operationId"])) is not None:
            operation["responses"]["202"]["links"] = {
                name: {"operationId": name, "parameters": {"job": f"$response.body#{place}"}} for name in about
            }
