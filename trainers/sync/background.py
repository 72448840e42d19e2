"""How ranks average a vector while they train on: a thread of its own, and one vector at a time."""

from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from trainers.exchange.connection import Parts
from trainers.exchange.node_links import NodeLinks


class Background:
    """All ranks launch and wait in the same order. Bytes are billed at the launch, so they depend on no clock."""

    def __init__(self, node_links: NodeLinks, device: torch.device, *, threads: int) -> None:
        self._node_links, self._device, self._threads = node_links, device, threads
        self._thread = ThreadPoolExecutor(1, "wiretune-average", self._start)
        self._pending: Future[None] | None = None

    def _start(self) -> None:
        torch.set_num_threads(self._threads)
        if self._device.type == "cuda":
            torch.cuda.set_stream(torch.cuda.Stream(self._device))  # type: ignore[no-untyped-call]

    def launch(self, vector: Tensor) -> None:
        """Begin to average `vector` over the ranks, in place; it is not to be touched before `wait` has returned."""
        self._ready = torch.cuda.current_stream(self._device).record_event() if vector.is_cuda else None
        parts: Parts = {"parameters": vector.nbytes}
        self._node_links.charge_sum(parts)
        self._pending = self._thread.submit(self._average, vector, parts, self._node_links.apart())

    def _average(self, vector: Tensor, parts: Parts, node_links: NodeLinks) -> None:
        if self._ready is not None:
            torch.cuda.current_stream(self._device).wait_event(self._ready)
        vector.div_(self._node_links.topology.num_workers)
        node_links.all_reduce_sum(vector, parts)
        if self._ready is not None:
            self._ready = torch.cuda.current_stream(self._device).record_event()

    def wait(self) -> None:
        """Return when what was launched is averaged, at once if nothing was; raises PeerLost."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        pending.result()
        if self._ready is not None:
            torch.cuda.current_stream(self._device).wait_event(self._ready)
