"""Slots for requests that wait for the storage or for Ray, which may be silent for long.

All requests share some forty threads. Without slots, those that wait for a silent storage would have them all.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from service.errors import Busy

NUM_SLOTS = 8
#: How long a request waits for a slot; it holds no thread meanwhile.
_PATIENCE_S = 2.0


class Slots:
    """The slots of one process."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(NUM_SLOTS)

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Hold a slot. Raises Busy where none becomes free in time."""
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
