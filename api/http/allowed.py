"""HEAD for routes that answer GET at once, and a complete `Allow` header for a 405."""

from collections.abc import Sequence

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.operations import OperationRoute

_IS_BARE = "wiretune.is_bare"


def is_bare(request: Request) -> bool:
    """Return whether the request was a HEAD: the route's body is not sent then."""
    return bool(request.scope.get(_IS_BARE))


class Allowed:
    """Answers HEAD like GET without the body, and lists all methods of the path in a 405."""

    def __init__(self, app: ASGIApp, routes: Sequence[APIRoute]) -> None:
        self.app, self._routes = app, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        as_get = scope["method"] == "HEAD" and "HEAD" in self._methods(scope["path"])

        async def send_allowed(message: Message) -> None:
            if message.get("status") == 405 and (methods := self._methods(scope["path"])):
                MutableHeaders(scope=message)["Allow"] = ", ".join(sorted(methods))
            if as_get and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        # A copy: the server checks its own scope to decide whether an answer has a body.
        await self.app({**scope, "method": "GET", _IS_BARE: True} if as_get else scope, receive, send_allowed)

    def _methods(self, path: str) -> set[str]:
        found: set[str] = set()
        for route in self._routes:
            if route.path_regex.match(path):
                found |= route.methods or set()
                found |= {"HEAD"} if "GET" in found and not _is_stream(route) else set()
        return found


def _is_stream(route: APIRoute) -> bool:
    return isinstance(route, OperationRoute) and route.operation.is_stream
