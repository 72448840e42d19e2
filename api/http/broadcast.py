"""Hands stored events to the readers of this process: one look at the database for all of them.

A reader has no queue, only the id of its last event. What is new is read and encoded once, kept for a while, and sent
from there to everybody; a reader that was away for longer reads pages of the database until it has caught up. So a
slow reader costs nothing, and one that stops reading is cut off by its connection (`api.http.connections`).
"""

import asyncio
import logging
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

from fastapi.responses import StreamingResponse
from starlette.types import Send

from service.control.store import Store
from service.errors import NotFound, Unavailable
from service.wire.base import MAX_PAGE
from service.wire.events import Event, EventKind, EventPage

#: Other replicas' events are looked for so often; this process rings a bell.
POLL_S = 0.25
#: Two looks, and so two writes to a reader, are at least so far apart: what comes meanwhile is sent in one piece.
PACE_S = 0.1
HEARTBEAT_S = 15.0
#: A browser that lost its connection waits so long before it connects again.
RETRY_MS = 2000
_KEPT = 2000
_AFTER_FAULT_S = 1.0
_BRIEF = {"id", "job_id", "kind"}

_log = logging.getLogger(__name__)


class _Encoded(NamedTuple):
    job_id: str | None
    project: str | None
    kind: EventKind
    text: bytes
    brief: bytes


class Broadcaster:
    """New events for every reader. Lives in one event loop; looks at the database only while there are readers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.num_readers = 0
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False
        self._begin_at(0)

    def _begin_at(self, cursor: int) -> None:
        self._ids: list[int] = []
        self._kept: list[_Encoded] = []
        self._first = self._last = cursor  # every event behind the first and up to the last is kept
        self._news = asyncio.Event()  # of the next look; every look has its own

    def close(self) -> None:
        """End every stream; readers connect again, to whoever serves then."""
        self._is_closed = True
        self._announce()

    async def stream(
        self,
        after: int | None,
        *,
        project: str | None = None,
        job_id: str | None = None,
        kinds: Collection[EventKind] = (),
        brief: bool = False,
        is_welcome: Callable[[], bool] = lambda: True,
    ) -> AsyncIterator[bytes]:
        """Yield events behind the id `after`, None: from now on, as server-sent events, without an end.

        Those of `project` and of `job_id` alone, if given, and of `kinds`, if any are. A `brief` stream has of each its
        id, job and kind. It ends where the database does not answer; the reader connects again. And where the job was
        deleted, or the reader, looked at every 15 s, is not welcome any more.
        """

        def is_wanted(event: _Encoded) -> bool:
            is_of = project in (None, event.project) and job_id in (None, event.job_id)
            return is_of and (not kinds or event.kind in kinds)

        def said(event: _Encoded) -> bytes:
            return event.brief if brief else event.text

        try:
            newest = await asyncio.to_thread(self._store.newest_event)
            cursor = newest if after is None else after
            with self._joined(newest):
                yield f"retry: {RETRY_MS}\nid: {cursor}\n\n".encode()
                if not self._first <= cursor <= newest and (await self._page(cursor, kinds=kinds)).gap:
                    yield said(_gap(cursor, newest))
                    cursor = newest
                asked_at = said_at = time.monotonic()
                while not self._is_closed:
                    if time.monotonic() - asked_at > HEARTBEAT_S:
                        if not await asyncio.to_thread(is_welcome):
                            return
                        asked_at = time.monotonic()
                    news = self._news  # taken before the look: none is missed
                    if cursor < self._first:
                        page = await self._page(cursor, project=project, job_id=job_id, kinds=kinds)
                        found, cursor = [_encoded(event) for event in page.events], page.next_after
                    else:
                        found, cursor = self._kept[bisect_right(self._ids, cursor) :], max(cursor, self._last)
                    left_s = said_at + HEARTBEAT_S - time.monotonic()
                    if text := b"".join(said(event) for event in found if is_wanted(event)):
                        yield text
                        said_at = time.monotonic()
                    elif cursor >= self._last and not await _is_set(news, within_s=left_s):
                        # For proxies a comment, for the reader the id up to which it has missed nothing.
                        yield f":\nid: {cursor}\n\n".encode()
                        said_at = time.monotonic()
                    if any(event.kind is EventKind.JOB_DELETED and event.job_id == job_id for event in found):
                        return
        except (NotFound, Unavailable) as error:  # the first for a job that was deleted
            _log.warning("a stream of events ends: %s", error)

    @contextmanager
    def _joined(self, newest: int) -> Iterator[None]:
        self.num_readers += 1
        if self._looking is None or self._looking.done():
            self._begin_at(newest)
            self._looking = asyncio.create_task(self._look())
        try:
            yield
        finally:
            self.num_readers -= 1

    async def _page(self, cursor: int, **wanted: Any) -> EventPage:
        return await asyncio.to_thread(self._store.events, cursor, limit=MAX_PAGE, **wanted)

    async def _look(self) -> None:
        """Read what is new for as long as anybody listens."""
        while self.num_readers and not self._is_closed:
            num_rings = self._store.bell.num_rings
            try:
                page = await self._page(self._last)
            except Exception as error:  # one bad look must not leave every reader without events
                _log.warning("a look for events failed: %s", error, exc_info=not isinstance(error, Unavailable))
                await asyncio.sleep(_AFTER_FAULT_S)
                continue
            if page.events:
                self._keep(page)
                await asyncio.sleep(PACE_S)
            else:
                await asyncio.to_thread(self._store.bell.wait, num_rings, timeout_s=POLL_S)

    def _keep(self, page: EventPage) -> None:
        self._ids += [event.id for event in page.events]
        self._kept += [_encoded(event) for event in page.events]
        self._last = page.next_after
        if (num_old := len(self._ids) - _KEPT) > _KEPT:
            self._first = self._ids[num_old - 1]
            del self._ids[:num_old], self._kept[:num_old]
        self._announce()

    def _announce(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class EventStream(StreamingResponse):
    """Server-sent events; when the reader goes, its generator is closed at once."""

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        # nginx holds back what it streams unless told not to.
        super().__init__(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def stream_response(self, send: Send) -> None:
        """Send event by event."""
        async with aclosing(self.body_iterator):  # type: ignore[type-var]
            await super().stream_response(send)


async def _is_set(event: asyncio.Event, *, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            return await event.wait()
    except TimeoutError:
        return False


def _encoded(event: Event) -> _Encoded:
    whole, brief = event.model_dump_json(), event.model_dump_json(include=_BRIEF)
    return _Encoded(event.job_id, event.project, event.kind, _message(event, whole), _message(event, brief))


def _message(event: Event, data: str) -> bytes:
    return f"id: {event.id}\nevent: {event.kind}\ndata: {data}\n\n".encode()


def _gap(after: int, newest: int) -> _Encoded:
    """Return the event that says that what followed `after` is gone; the stream goes on behind `newest`."""
    data, now = {"after": after}, datetime.now(UTC)
    return _encoded(Event(id=newest, job_id=None, project=None, kind=EventKind.GAP, at=now, data=data))
