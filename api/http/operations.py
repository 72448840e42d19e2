"""Operations of the API, declared beside their routes; permissions and the OpenAPI document derive from them."""

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

#: Answers of a route by status; FastAPI calls them `responses`.
Answers = dict[int | str, dict[str, Any]]
Function = TypeVar("Function", bound=Callable[..., Any])

#: Refusals that any call with a key may get.
_CALLING = (Unauthorized, Forbidden, TooManyRequests, Unavailable)
#: Path parameters that `require_key` hides from callers who may not see them.
_NAMED = ("{job}", "{key}", "{code}")


@dataclass(frozen=True, kw_only=True)
class Body:
    """A body that a route reads itself, so that a refusal can point at every wrong field."""

    model: type[BaseModel] | None = None  #: None: a file
    example: Any = None
    media_types: tuple[str, ...] = ("application/json",)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation of the API: one method of one path."""

    id: str
    action: Action | None  #: what the caller's role must allow; None: no key is needed
    #: Refusals specific to this operation; those of callers, path and parameters are added.
    errors: tuple[type[WiretuneError], ...] = ()
    body: Body | None = None
    headers: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  #: of its answers, by status
    is_stream: bool = False  #: answers piece by piece; a HEAD would produce all of it
    made_job: str | None = None  #: JSON pointer to the id of the new job in the answer


class OperationRoute(APIRoute):
    """A route that documents its operation's refusals and body."""

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
        """Return a decorator that makes a function the route of `operation`; FastAPI takes `given`."""
        route = cast(type[APIRoute], partial(OperationRoute, operation=operation))

        def add(function: Function) -> Function:
            self.add_api_route(path, function, methods=[method], route_class_override=route, **given)
            return function

        return add


def refusal(description: str) -> dict[str, Any]:
    """Return the documentation of a refusal, which is a problem document."""
    schema = {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}
    return {"description": description, "content": {MEDIA_TYPE: schema}}


#: Refusals of any body.
_BODY_REFUSALS: Answers = {
    408: refusal("The body did not arrive in time (`request-timeout`)"),
    413: refusal("The body is too long (`content-too-large`)"),
    415: refusal("The body is something else (`unsupported-media-type`)"),
}


def file(media_type: str, what: str) -> Answers:
    """Return the `responses` of a route that answers with a file."""
    return {200: {"description": what, "content": {media_type: {"schema": {"type": "string"}}}}}


def _documented(operation: Operation, path: str, given: Answers) -> Answers:
    """Return all documented answers of the operation at `path`, except the success that FastAPI derives."""
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
