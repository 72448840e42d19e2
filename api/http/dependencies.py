"""Dependencies of routes, except the store and the caller."""

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
    # FastAPI resumes here once the answer is sent or abandoned.
    with services_of(request).downloads.begin(caller) as download:
        yield download


async def _slot(request: Request) -> AsyncIterator[None]:
    async with services_of(request).slots.taken():
        yield


OutlookOf = Annotated[Outlook, Depends(_outlook)]
VitalThreads = Annotated[CapacityLimiter, Depends(_vital_threads)]
DownloadOf = Annotated[Download, Depends(_download)]
#: Held until the route's function returns, but not while its answer is sent. Make it the last parameter of a route:
#: then a slow upload holds no slot.
Slot = Annotated[None, Depends(_slot, scope="function")]
