"""Slots for requests that wait for storage or for Ray, which may not answer for a long time.

All requests share some forty threads. Without slots, requests to a silent storage could occupy all of them.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from service.errors import Busy

NUM_SLOTS = 8
#: How long a request waits for a slot, without holding a thread.
_PATIENCE_S = 2.0


class Slots:
    """The slots of one process."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(NUM_SLOTS)

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Hold a slot. Raises Busy if none becomes free in time."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._free.acquire()
        except TimeoutError:
            message = f"{NUM_SLOTS} requests wait for the storage or for Ray, which is the most; try again"
            raise Busy(message) from None
        try:
            yield
        finally:
            self._free.release()
