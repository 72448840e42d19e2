"""Errors as `application/problem+json` (RFC 9457), in one form for everything that goes wrong."""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from api.http.request_ids import HEADER, SCOPE_KEY
from service.errors import DatabaseUnavailable, TooManyRequests, Unauthorized, Unavailable, WiretuneError
from service.job.problems import Problem
from service.log_lines import log_field, log_fields

MEDIA_TYPE = "application/problem+json"
#: Seconds after which a caller should retry a part of the service that does not answer.
RETRY_AFTER_S = 2
#: Status names that differ between Python versions; a problem's type must not.
_PHRASES = {413: "Content Too Large", 416: "Range Not Satisfiable"}

log = logging.getLogger(__name__)


class ProblemDocument(BaseModel):
    """RFC 9457 problem details."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str | None = Field(None, description="as in the answer's `X-Request-ID`, and in the service's log")
    errors: tuple[Problem, ...] = ()


def _problem(
    slug: str,
    title: str,
    status: int,
    detail: str,
    *,
    errors: Sequence[Problem] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a problem document with `errors` as a response."""
    request_id = log_field("request_id")
    document = ProblemDocument(
        type=f"/problems/{slug}", title=title, status=status, detail=detail, request_id=request_id
    )
    shown = [each.model_dump() | {"value": _shown(each.value)} for each in errors]
    # In ASCII: a refused value may contain text that UTF-8 cannot encode, such as half a surrogate pair.
    body = json.dumps(document.model_dump() | {"errors": shown}, ensure_ascii=True)
    return Response(body, status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def _shown(value: Any) -> Any:
    is_plain = value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    return value if is_plain else str(value)


def install(app: FastAPI) -> None:
    """Make `app` answer every error as a problem document."""
    app.add_exception_handler(WiretuneError, _answer_domain_error)
    app.add_exception_handler(RequestValidationError, _answer_bad_parameters)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(ClientDisconnect, _note_lost_client)
    app.add_exception_handler(Exception, _answer_unexpected)


async def _answer_domain_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, WiretuneError)
    headers = {}
    detail = str(error)
    if isinstance(error, DatabaseUnavailable) and not getattr(request.state, "is_known", False):
        log.warning("%s %s: %s", request.method, request.url.path, error)
        detail = "the database does not answer; try again"
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = 'Bearer realm="wiretune"'
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if isinstance(error, TooManyRequests):
        headers["Retry-After"] = str(error.retry_after_s)
    errors = getattr(error, "problems", ())
    return _problem(error.slug, error.title, error.status, detail, errors=errors, headers=headers)


async def _answer_bad_parameters(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors: list[Problem] = []
    for found in error.errors():
        pointer = "".join(f"/{part}" for part in found["loc"][1:])  # loc[0] is query, path or header
        value = found["input"] if isinstance(found["input"], str | int | float) else None
        problem = Problem(pointer=pointer, message=found["msg"], value=value)
        if problem not in errors:  # two dependencies may read the same parameter
            errors.append(problem)
    detail = "; ".join(f"{each.pointer}: {each.message}" for each in errors)
    return _problem("invalid-request", "The request is not valid", 422, detail, errors=errors)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    phrase = _PHRASES.get(error.status_code) or HTTPStatus(error.status_code).phrase
    slug = phrase.lower().replace(" ", "-")
    detail = error.detail if error.detail != phrase else f"{request.method} {request.url.path}: {phrase.lower()}"
    return _problem(slug, phrase, error.status_code, detail, headers=error.headers)


def timeout(detail: str) -> Response:
    """Return the answer to a request whose body did not arrive in time."""
    return _problem("request-timeout", "Request Timeout", 408, detail)


async def _note_lost_client(request: Request, _: Exception) -> Response:
    log.debug("%s %s: the client was gone before its request was complete", request.method, request.url.path)
    return Response(status_code=400)  # nobody reads it


async def _answer_unexpected(request: Request, error: Exception) -> Response:
    # Starlette calls this handler outside of the middleware that sets the request's id in logs and headers.
    request_id = request.scope.get(SCOPE_KEY)
    with log_fields(request_id=request_id):
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        detail = "something went wrong inside the service; its log has the details"
        return _problem("internal", "Internal error", 500, detail, headers={HEADER: request_id} if request_id else {})
