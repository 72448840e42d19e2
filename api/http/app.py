"""The HTTP application: routes over a store, one form of errors, strict headers."""

import os
import time
from functools import cache
from importlib.metadata import version
from typing import Any

from anyio import CapacityLimiter
from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http import bodies, openapi, parameters, problems
from api.http.allowed import Allowed
from api.http.broadcast import Broadcaster
from api.http.downloads import Downloads
from api.http.oidc import Issuer
from api.http.operations import OperationRoute
from api.http.rate_limits import Limits
from api.http.request_ids import RequestIds
from api.http.routes import (
    attempts,
    cluster,
    code,
    events,
    health,
    jobs,
    keys,
    methods,
    page,
    queue,
    results,
    sessions,
    verbs,
)
from api.http.services import Conflicts, FindOutlook, Services
from api.http.shares import Shares
from api.http.slots import Slots
from service import tracing
from service.control.queue.outlook import Outlook
from service.control.ray_cluster.logs import Logs
from service.control.ray_cluster.occupancy import Occupancy
from service.control.store import Store
from service.control.telemetry import Telemetry

#: plotly.js sets inline styles. Nothing else inline is allowed, and nothing from other sites.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
#: Event streams must not be delayed, weights do not compress, and compressing CSV would block the event loop.
_NOT_GZIPPED = (*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/octet-stream", "text/csv")
#: Concurrent uploads, and concurrent checks of them: each check unpacks up to 100 MB and packs it again.
_MAX_UPLOADS, _NUM_CHECKS = 8, 1
_VITAL_THREADS = 40
_GZIP_LEVEL = 1  # a snapshot of 129 kB becomes 46 kB in 1 ms; level 9 makes 45 kB in 7 ms
_ABOUT: dict[str, Any] = {
    "title": "Wiretune",
    "version": version("wiretune"),
    "description": "Tunes learning rate and gradient sparsity while a model trains over a slow network.",
}
_NO_TELEMETRY: Any = {"tracing": False, "metrics": False, "logs": False, "operation_spans": False}


#: All routes, shared by all applications: reading their signatures takes 0.3 s at the first use.
_ROUTES = APIRouter(dependencies=[Depends(parameters.require_known)])
_ROUTERS = [
    each.router
    for each in (jobs, verbs, queue, results, events, methods, cluster, code, keys, sessions, attempts, health, page)
]
for _router in _ROUTERS:
    _ROUTES.include_router(_router)
_EACH_ROUTE = [route for router in _ROUTERS for route in router.routes if isinstance(route, APIRoute)]
OPERATIONS = [route.operation for route in _EACH_ROUTE if isinstance(route, OperationRoute)]


class Counted:
    """Counts and times every request by its operation."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self.app, self._telemetry = app, telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count it."""
        status, began = 0, time.perf_counter()

        async def send_counted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        with self._telemetry.in_flight.track_inprogress():
            try:
                await self.app(scope, receive, send_counted)
            finally:
                operation = getattr(scope.get("route"), "operation_id", None) or "none"
                self._telemetry.requests.labels(operation, str(status)).inc()
                self._telemetry.request_seconds.labels(operation).observe(time.perf_counter() - began)


class SecurityHeaders:
    """Adds the security headers to every answer; caches must not keep it, or must revalidate it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and add the headers."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                headers.setdefault("Cache-Control", "no-store" if "etag" not in headers else "no-cache")
            await send(message)

        await self.app(scope, receive, send_with_headers)


def create_app(
    store: Store,
    *,
    conflicts: Conflicts = lambda spec: [],
    outlook: FindOutlook = Outlook,
    user_code: bool = False,
    logs: Logs | None = None,
    occupancy: Occupancy | None = None,
) -> FastAPI:
    """Return the application over an open `store`; the caller closes the store.

    Args:
        store: the only source of every route; its calls run in the thread pool.
        conflicts: returns the parts of a job that the cluster can never place; by default none.
        outlook: returns the queue as last decided; by default it is empty.
        user_code: whether jobs may use their own code and files.
        logs: the logs of attempts; by default only those on storage, without Ray.
        occupancy: the occupancy of the cluster; by default there is no cluster.
    """
    asked = os.environ.get("FASTAPI_OTEL_AUTO_CONFIGURE")
    app = FastAPI(
        **_ABOUT,
        docs_url=None,  # FastAPI's page loads foreign scripts; `page` has its own
        redoc_url=None,
        redirect_slashes=False,
        telemetry=None if asked else _NO_TELEMETRY | {"tracing": tracing.is_on()},
    )
    services = app.state.services = Services(
        store=store,
        conflicts=conflicts,
        outlook=outlook,
        user_code=user_code,
        issuer=Issuer(store.settings) if store.settings.oidc_issuer else None,
        logs=logs or Logs(store, ray=lambda: None),
        occupancy=occupancy or Occupancy(store, ray=lambda: None),
        broadcaster=Broadcaster(store),
        limits=Limits(store.settings.requests_per_minute),
        downloads=Downloads(store.settings.downloads),
        uploads=Shares(_MAX_UPLOADS, "uploads of code"),
        slots=Slots(),
        checks=CapacityLimiter(_NUM_CHECKS),
        parsers=CapacityLimiter(bodies.NUM_PARSERS),
        vital=CapacityLimiter(_VITAL_THREADS),
    )
    store.telemetry.readers.set_function(lambda: services.broadcaster.num_readers)
    problems.install(app)
    app.router.routes.extend(_ROUTES.routes)
    app.mount("/static", page.static_files)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(Counted, telemetry=store.telemetry)
    app.add_middleware(GZipMiddleware, compresslevel=_GZIP_LEVEL, exclude_content_types=_NOT_GZIPPED)
    app.add_middleware(RequestIds)
    app.add_middleware(Allowed, routes=_EACH_ROUTE)
    app.openapi = _document  # type: ignore[method-assign]
    return app


@cache
def _document() -> dict[str, Any]:
    """Return the OpenAPI document. All applications have the same: it takes a second."""
    return openapi.document(_ABOUT, _ROUTES.routes, OPERATIONS)
