"""The dependencies of routes besides the store and the caller."""

from collections.abc import AsyncIterator
from typing import Annotated

from anyio import CapacityLimiter
from fastapi import Depends, Request

from api.http.auth import Caller
from api.http.downloads import Download
from api.http.services import services_of
from service.control.queue.outlook import Outlook


async def _outlook(request: Request) -> Outlook:
    return services_of(request).outlook()


async def _vital_threads(request: Request) -> CapacityLimiter:
    return services_of(request).vital


async def _download(request: Request, caller: Caller) -> AsyncIterator[Download]:
    # FastAPI goes on here when the answer has been sent, or is given up.
    with services_of(request).downloads.begin(caller) as download:
        yield download


async def _slot(request: Request) -> AsyncIterator[None]:
    async with services_of(request).slots.taken():
        yield


OutlookOf = Annotated[Outlook, Depends(_outlook)]
VitalThreads = Annotated[CapacityLimiter, Depends(_vital_threads)]
DownloadOf = Annotated[Download, Depends(_download)]
#: Held until the route's function returns, and not while its answer is sent. The last parameter of a route: who sends
#: a body slowly has no slot yet.
Slot = Annotated[None, Depends(_slot, scope="function")]
