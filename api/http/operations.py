"""The facts of an operation of the API, declared beside its route: permissions and the OpenAPI document follow."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel

from api.http.problems import MEDIA_TYPE
from service.control.access.rules import Action
from service.errors import (
    Forbidden,
    InvalidRequest,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    WiretuneError,
)

#: Of a route, by status: what FastAPI calls its `responses`.
Answers = dict[int | str, dict[str, Any]]
Function = TypeVar("Function", bound=Callable[..., Any])

#: Whoever calls with a key may be refused so.
_CALLING = (Unauthorized, Forbidden, TooManyRequests, Unavailable)
#: What a path may name, and `require_key` finds only for who may see it.
_NAMED = ("{job}", "{key}", "{code}")


@dataclass(frozen=True, kw_only=True)
class Body:
    """A body that a route reads by itself, so that a refusal can point at every field at fault."""

    model: type[BaseModel] | None = None  #: None: a file
    example: Any = None
    media_types: tuple[str, ...] = ("application/json",)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """A thing that callers do by one method of one path."""

    id: str
    action: Action | None  #: what a role must allow; None: no key is asked for
    #: Its refusals beside those of all: of a caller, of a job, a key or code of the path, and of a parameter.
    errors: tuple[type[WiretuneError], ...] = ()
    body: Body | None = None
    headers: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  #: of its answers, by their status
    is_stream: bool = False  #: its answer comes piece by piece: for a HEAD all of it would be made
    made_job: str | None = None  #: where in its answer the id of a job is that it makes, a JSON pointer


class OperationRoute(APIRoute):
    """A route with its operation, of which it documents the refusals and the body."""

    def __init__(self, path: str, endpoint: Callable[..., Any], *, operation: Operation, **given: Any) -> None:
        self.operation = operation
        given["operation_id"] = operation.id
        given["responses"] = _documented(operation, path, given["responses"])
        if operation.body is not None:
            given["openapi_extra"] = {"requestBody": _request_body(operation.body)}
        super().__init__(path, endpoint, **given)


class OperationRouter(APIRouter):
    """A router whose every route declares its operation."""

    def serves(self, method: str, path: str, operation: Operation, **given: Any) -> Callable[[Function], Function]:
        """Return what makes a function the route of an operation; `given` is as FastAPI takes it."""
        route = cast(type[APIRoute], partial(OperationRoute, operation=operation))

        def add(function: Function) -> Function:
            self.add_api_route(path, function, methods=[method], route_class_override=route, **given)
            return function

        return add


def refusal(description: str) -> dict[str, Any]:
    """Return the answer of a route that refuses with a problem document."""
    schema = {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}
    return {"description": description, "content": {MEDIA_TYPE: schema}}


#: Of a body, whatever is in it.
_BODY_REFUSALS: Answers = {
    408: refusal("The body did not arrive in time (`request-timeout`)"),
    413: refusal("The body is too long (`content-too-large`)"),
    415: refusal("The body is something else (`unsupported-media-type`)"),
}


def file(media_type: str, what: str) -> Answers:
    """Return the `responses` of a route that answers with a file."""
    return {200: {"description": what, "content": {media_type: {"schema": {"type": "string"}}}}}


def _documented(operation: Operation, path: str, given: Answers) -> Answers:
    """Return all that the operation answers at `path`, beside the success that FastAPI reads off its function."""
    needs_key = operation.action is not None
    named = (NotFound,) if needs_key and any(each in path for each in _NAMED) else ()
    errors = (*(_CALLING if needs_key else ()), *named, *operation.errors, InvalidRequest)
    return given | _refusals(errors) | (_BODY_REFUSALS if operation.body else {})


def _refusals(errors: tuple[type[WiretuneError], ...]) -> Answers:
    titles: dict[int | str, list[str]] = {}
    for error in dict.fromkeys(errors):
        titles.setdefault(error.status, []).append(f"{error.title} (`{error.slug}`)")
    return {status: refusal("; ".join(found)) for status, found in titles.items()}


def _request_body(body: Body) -> dict[str, Any]:
    if body.model is None:
        content = {"schema": {"type": "string", "format": "binary"}}
    else:
        schema = {"$ref": f"#/components/schemas/{body.model.__name__}"}
        content = {"schema": schema, "example": body.example}
    return {"required": True, "content": dict.fromkeys(body.media_types, content)}
