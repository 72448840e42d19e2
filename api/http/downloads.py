"""Downloads: answers that last for as long as their reader takes. They are counted, and have threads of their own."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from api.http.shares import Shares
from service.control.access.rules import Principal

T = TypeVar("T")
#: So many pieces are made at a time of rows: each holds a connection of the database, and takes the interpreter from
#: the loop. A piece of a file waits for storage, which may hang.
_OF_ROWS, _OF_FILES = 2, 8


class Download:
    """One of the downloads under way; `closing` is closed when its answer is complete or its reader is gone."""

    def __init__(self, *, row_threads: CapacityLimiter, file_threads: CapacityLimiter) -> None:
        self._row_threads, self._file_threads = row_threads, file_threads
        self.closing = ExitStack()

    def rows(self, content: Iterator[T]) -> AsyncIterator[T]:
        """Yield `content`, which is read from the database."""
        return _pieces(content, self._row_threads)

    def file(self, content: Iterator[T]) -> AsyncIterator[T]:
        """Yield `content`, which is read from storage."""
        return _pieces(content, self._file_threads)


async def _pieces(content: Iterator[T], threads: CapacityLimiter) -> AsyncIterator[T]:
    """Yield `content`, each piece made when the one before has been taken; none while nobody reads."""
    while (piece := await to_thread.run_sync(next, content, None, limiter=threads)) is not None:
        yield piece


class Downloads:
    """The downloads under way, at most `most`."""

    def __init__(self, most: int) -> None:
        self._shares = Shares(most, "downloads (WIRETUNE_DOWNLOADS)")
        self._row_threads, self._file_threads = CapacityLimiter(_OF_ROWS), CapacityLimiter(_OF_FILES)

    @property
    def num(self) -> int:
        """Return how many there are."""
        return self._shares.num

    @contextmanager
    def begin(self, caller: Principal) -> Iterator[Download]:
        """Give one more download. Raises Busy where there are as many as may be."""
        download = Download(row_threads=self._row_threads, file_threads=self._file_threads)
        with self._shares.begin(caller), download.closing:
            yield download
