"""The thread that exchanges gradients bucket by bucket while backward runs."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.step_result import Exchanged


def own_thread(name: str, device: torch.device, *, threads: int) -> ThreadPoolExecutor:
    """Return an executor with one thread, in which torch uses `threads` threads; on a GPU it has its own stream."""

    def start() -> None:
        torch.set_num_threads(threads)  # torch counts them for each thread that calls it
        if device.type == "cuda":
            torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]

    return ThreadPoolExecutor(1, name, start)


class Communication:
    """Runs exchanges in the order given. All ranks must give the same order, so that their collectives match."""

    def __init__(self, buffer: GradientBuffer, device: torch.device, *, threads: int) -> None:
        self._buffer, self._device = buffer, device
        self._thread = own_thread("wiretune-exchange", device, threads=threads)
        self.exposed_s = 0.0  # seconds that `outcome` has waited on the host since the beginning
        self.busy_s = 0.0  # seconds that exchanges have taken, without their waits for backward

    @contextmanager
    def beside(self, step: Callable[[], Exchanged]) -> Iterator[Future[Exchanged]]:
        """Run `step` in the thread while the body runs backward; yields the future of its result.

        If the body fails, the step is ended and awaited too: nobody may close a group that is in a collective.
        """
        pending = self.start(step)
        try:
            yield pending
        except BaseException:
            self._buffer.abort()
            pending.exception()
            raise
        self._buffer.finish()

    def start(self, step: Callable[[], Exchanged]) -> Future[Exchanged]:
        """Start `step` in the thread. The caller tells the buffer which layers arrive, and when backward has ended."""
        self._buffer.expect()
        asked = torch.cuda.current_stream(self._device).record_event() if self._device.type == "cuda" else None
        return self._thread.submit(self._run, step, asked)

    def outcome(self, pending: Future[Exchanged]) -> Exchanged:
        """Wait for the step after the body, and return its result. Raises what the step raised."""
        started = time.monotonic()
        outcome = pending.result()
        self.exposed_s += time.monotonic() - started
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).wait_event(self._sent)
        return outcome

    def _run(self, step: Callable[[], Exchanged], asked: torch.cuda.Event | None) -> Exchanged:
        if asked is not None:  # before that, a GPU has not computed what the step is given beside the buffer: the loss
            torch.cuda.current_stream(self._device).wait_event(asked)
        started, waited_s = time.monotonic(), self._buffer.waited_s
        outcome = step()
        self.busy_s += time.monotonic() - started - (self._buffer.waited_s - waited_s)
        if self._device.type == "cuda":
            self._sent = torch.cuda.current_stream(self._device).record_event()
        return outcome
