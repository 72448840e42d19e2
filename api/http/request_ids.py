"""Ids of requests: in logs, in the header of every answer, and in problem documents."""

import logging
import re
import secrets
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.log_lines import log_fields

HEADER = "X-Request-ID"
SCOPE_KEY = "wiretune.request_id"
#: Ids from callers and proxies that may go into our logs unchanged.
_TAKEN = re.compile(r"[A-Za-z0-9._-]{1,64}")
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_OF_DRIVERS = "/v1/attempts/"

log = logging.getLogger("wiretune.requests")


class RequestIds:
    """Gives every request an id, or keeps the caller's, and logs the changes that users request."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id, status, began = _id_of(scope), 0, time.perf_counter()
        scope[SCOPE_KEY] = request_id

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        with log_fields(request_id=request_id):
            try:
                await self.app(scope, receive, send_with_id)
            finally:
                _note(scope, status, time.perf_counter() - began)


def _id_of(scope: Scope) -> str:
    given = Headers(scope=scope).get(HEADER, "")
    return given if _TAKEN.fullmatch(given) else secrets.token_hex(8)


def _note(scope: Scope, status: int, seconds: float) -> None:
    """Log one line; at debug level for reads, and for drivers, which report many times a second."""
    is_change = scope["method"] not in _READING and not scope["path"].startswith(_OF_DRIVERS)
    operation = getattr(scope.get("route"), "operation_id", None) or "none"
    job = scope.get("path_params", {}).get("job")
    with log_fields(operation=operation, status=status, **({"job": job} if job else {})):
        level = logging.INFO if is_change else logging.DEBUG
        log.log(level, "%s answered %d in %.3f s", operation, status, seconds)
