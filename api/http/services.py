"""The values that all requests of an application share, and how a route asks for the store."""

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

#: What of a job the cluster can never place; nothing where that is not known.
Conflicts = Callable[[JobSpec], list[Problem]]
#: The queue as it was last decided.
FindOutlook = Callable[[], Outlook]


@dataclass(frozen=True)
class Services:
    """Made with the application, and never replaced."""

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
    #: Threads that check uploads, and that parse bodies.
    checks: CapacityLimiter
    parsers: CapacityLimiter
    #: Threads of the requests that must not wait for others: drivers keep their leases, and probes their service.
    vital: CapacityLimiter


def services_of(request: Request) -> Services:
    """Return what the application that got the `request` shares."""
    services: Services = request.app.state.services
    return services


async def _store(request: Request) -> Store:
    # Async: FastAPI sends what is not through a thread.
    return services_of(request).store


StoreOf = Annotated[Store, Depends(_store)]
