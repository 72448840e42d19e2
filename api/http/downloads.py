"""Downloads: answers that last for as long as their reader takes. They are counted, and have threads of their own."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Request

from service.errors import Busy

T = TypeVar("T")
#: So many pieces are made at a time. Each holds a connection of the database, and takes the interpreter from the loop.
_NUM_THREADS = 2


class Download:
    """One of the downloads under way; `closing` is closed when its answer is complete or its reader is gone."""

    def __init__(self, threads: CapacityLimiter) -> None:
        self._threads = threads
        self.closing = ExitStack()

    async def chunks(self, content: Iterator[T]) -> AsyncIterator[T]:
        """Yield `content`, each piece made when the one before has been taken; none while nobody reads."""
        while (chunk := await to_thread.run_sync(next, content, None, limiter=self._threads)) is not None:
            yield chunk


class Downloads:
    """The downloads under way: `num`, at most `most`."""

    def __init__(self, most: int) -> None:
        self._most, self.num = most, 0
        self._threads = CapacityLimiter(_NUM_THREADS)

    @contextmanager
    def begin(self) -> Iterator[Download]:
        """Give one more download. Raises Busy where there are as many as may be."""
        if self.num >= self._most:
            raise Busy(f"{self.num} downloads are under way, which is the most (WIRETUNE_DOWNLOADS); try again")
        self.num += 1
        try:
            download = Download(self._threads)
            with download.closing:
                yield download
        finally:
            self.num -= 1


async def _download(request: Request) -> AsyncIterator[Download]:
    # FastAPI goes on here when the answer has been sent, or is given up.
    downloads: Downloads = request.app.state.downloads
    with downloads.begin() as download:
        yield download


DownloadOf = Annotated[Download, Depends(_download)]
