"""The one thread that exchanges gradients, step by step and bucket by bucket, beside backward."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.outcome import Exchanged


class Communication:
    """Runs exchanges in the order given. All ranks give the same, so their collectives meet in one order."""

    def __init__(self, buffer: GradientBuffer, *, threads: int) -> None:
        self._buffer = buffer
        # torch counts its threads for each thread that calls it.
        self._thread = ThreadPoolExecutor(1, "wiretune-exchange", lambda: torch.set_num_threads(threads))

    @contextmanager
    def exchanging(self, step: Callable[[], Exchanged]) -> Iterator[Future[Exchanged]]:
        """Run `step` beside the body, which is the backward whose gradient it exchanges.

        What comes of it is the future's result, after the body. A failing body ends the step as well.
        """
        self._buffer.expect()
        pending = self._thread.submit(step)
        try:
            yield pending
        except BaseException:
            self._buffer.abort()
            pending.exception()  # until it has left its collective: nothing may close that under it
            raise
        self._buffer.finish()

    def close(self) -> None:
        """End the thread, when it is done."""
        self._thread.shutdown()


