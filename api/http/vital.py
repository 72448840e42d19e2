"""Threads of the requests that must not wait for others: drivers keep their leases, and probes their service."""

from typing import Annotated

from anyio import CapacityLimiter
from fastapi import Depends, Request

NUM_THREADS = 40


async def _threads(request: Request) -> CapacityLimiter:
    threads: CapacityLimiter = request.app.state.vital
    return threads


VitalThreads = Annotated[CapacityLimiter, Depends(_threads)]
