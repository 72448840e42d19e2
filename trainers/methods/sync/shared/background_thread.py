"""A thread that does one thing at a time, such as an average over the ranks, while the rank trains on."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import Tensor

from trainers.exchange.communication import own_thread
from trainers.exchange.connection import BytesByPurpose
from trainers.exchange.node_links import NodeLinks

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


class AveragingThread:
    """Averages a vector in a background thread. All ranks must launch and wait in the same order.

    Bytes are charged at the launch, so the bill does not depend on timing.
    """

    def __init__(self, node_links: NodeLinks, device: torch.device, *, threads: int) -> None:
        self._node_links = node_links
        self._thread = BackgroundThread[None](device, threads=threads)

    def launch(self, vector: Tensor) -> None:
        """Begin to average `vector` over the ranks in place. Do not touch it before `wait` has returned."""
        parts: BytesByPurpose = {"parameters": vector.nbytes}
        self._node_links.charge_sum(parts)
        self._thread.launch(partial(self._average, vector, parts, self._node_links.apart()))

    def _average(self, vector: Tensor, parts: BytesByPurpose, node_links: NodeLinks) -> None:
        vector.div_(self._node_links.topology.num_workers)
        node_links.all_reduce_sum(vector, parts)

    def wait(self) -> None:
        """Wait until the launched vector is averaged; return at once if there is none. Raises PeerLost."""
        self._thread.wait()
