"""Downloads: answers that take as long as their reader. They are counted, and use threads of their own."""

import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi.responses import Response, StreamingResponse

from api.http.ranges import Part, content_range
from api.http.shares import Shares
from service.control.access.rules import Principal
from service.control.storage import StoredFile

T = TypeVar("T")
#: How many pieces are made at a time. Rows hold a database connection and take the interpreter from the event loop.
#: Files wait for storage, which may hang.
_OF_ROWS, _OF_FILES = 2, 8


class Download:
    """A download under way. `closing` is closed once its answer is complete or its reader is gone."""

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
    """Yield `content`. Each piece is made once the previous one is taken, so nothing is made while nobody reads."""
    while (piece := await to_thread.run_sync(next, content, None, limiter=threads)) is not None:
        yield piece


class Downloads:
    """The downloads under way, `most` at a time."""

    def __init__(self, most: int) -> None:
        self._shares = Shares(most, "downloads (WIRETUNE_DOWNLOADS)")
        self._row_threads, self._file_threads = CapacityLimiter(_OF_ROWS), CapacityLimiter(_OF_FILES)

    @property
    def num(self) -> int:
        """The number of downloads under way."""
        return self._shares.num

    @contextmanager
    def begin(self, caller: Principal) -> Iterator[Download]:
        """Begin a download. Raises Busy if there are too many."""
        download = Download(row_threads=self._row_threads, file_threads=self._file_threads)
        with self._shares.begin(caller), download.closing:
            yield download


def attachment(name: str) -> dict[str, str]:
    """Return the header by which a browser saves the answer as a file of this name."""
    return {"Content-Disposition": f'attachment; filename="{name}"'}


def sent(found: StoredFile, part: Part, name: str, download: Download, *, sha256: str | None = None) -> Response:
    """Return the answer with a part of an open file, which `download` sends, or with the headers alone for a HEAD."""
    places = part.of(found)
    where = content_range(places, found.num_bytes)
    headers = attachment(name) | where | {"Accept-Ranges": "bytes", "ETag": found.etag}
    headers["Content-Length"] = str(len(places))
    if sha256 is not None:
        headers["Repr-Digest"] = f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:"  # RFC 9530
    if part.is_bare:
        return Response(media_type="application/octet-stream", headers=headers)
    return StreamingResponse(
        download.file(found.chunks(places)),
        status_code=206 if where else 200,
        media_type="application/octet-stream",
        headers=headers,
    )
