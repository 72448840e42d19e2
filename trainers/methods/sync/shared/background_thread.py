"""A thread that does one thing at a time while the rank trains on."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

import torch

from trainers.exchange.communication import own_thread

Result = TypeVar("Result")


class BackgroundThread(Generic[Result]):
    """Runs one piece of work at a time. On a GPU, it starts after what the launching stream has queued.

    In the same way, the stream that calls `wait` continues after the work.
    """

    def __init__(self, device: torch.device, *, threads: int) -> None:
        self._device = device
        self._thread = own_thread("wiretune-average", device, threads=threads)
        self._pending: Future[Result] | None = None
        self._ready: torch.cuda.Event | None = None

    def launch(self, work: Callable[[], Result]) -> None:
        """Start `work`. Do not touch its data before `wait` has returned."""
        self._ready = self._now()
        self._pending = self._thread.submit(self._run, work)

    def _run(self, work: Callable[[], Result]) -> Result:
        self._follow()
        result = work()
        self._ready = self._now()
        return result

    def wait(self) -> Result | None:
        """Wait for the result and return it; None if no work is under way. Raises what the work raised."""
        if self._pending is None:
            return None
        pending, self._pending = self._pending, None
        result = pending.result()
        self._follow()
        return result

    def _now(self) -> torch.cuda.Event | None:
        return torch.cuda.current_stream(self._device).record_event() if self._device.type == "cuda" else None

    def _follow(self) -> None:
        if self._ready is not None:
            torch.cuda.current_stream(self._device).wait_event(self._ready)
