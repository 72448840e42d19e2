"""The objects shared by all requests of an application, and the dependency that gives a route the store."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from anyio import CapacityLimiter
from fastapi import Depends, Request

from api.http.broadcast import Broadcaster
from api.http.downloads import Downloads
from api.http.oidc import Issuer
from api.http.rate_limits import Limits
from api.http.shares import Shares
from api.http.slots import Slots
from service.control.queue.outlook import Outlook
from service.control.ray_cluster.logs import Logs
from service.control.ray_cluster.occupancy import Occupancy
from service.control.store import Store
from service.job.problems import Problem
from service.job.spec import JobSpec

#: Returns the parts of a job that the cluster can never place; empty if that is unknown.
Conflicts = Callable[[JobSpec], list[Problem]]
#: Returns the queue as last decided.
FindOutlook = Callable[[], Outlook]


@dataclass(frozen=True)
class Services:
    """Shared objects, created with the application and never replaced."""

    store: Store
    conflicts: Conflicts
    outlook: FindOutlook
    user_code: bool
    issuer: Issuer | None
    logs: Logs
    occupancy: Occupancy
    broadcaster: Broadcaster
    limits: Limits
    downloads: Downloads
    uploads: Shares
    slots: Slots
    #: Threads for checking uploads and for parsing bodies.
    checks: CapacityLimiter
    parsers: CapacityLimiter
    #: Threads for requests that must not wait for others: drivers' leases and health probes.
    vital: CapacityLimiter


def services_of(request: Request) -> Services:
    """Return the shared objects of the request's application."""
    services: Services = request.app.state.services
    return services


async def _store(request: Request) -> Store:
    # Async: FastAPI would run a plain function in a thread.
    return services_of(request).store


StoreOf = Annotated[Store, Depends(_store)]
