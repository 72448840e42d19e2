"""Broadcasts stored events to the readers of this process, with one query for all of them.

A reader has no queue, only the id of its last event. New events are read and encoded once, kept for a while, and sent
from there to everybody. A reader that was away for longer reads pages from the database until it has caught up. So a
slow reader costs nothing, and the connection of one that stops reading is cut off (`api.http.connections`).
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

#: How often to query for other replicas' events. Events of this process ring a bell.
POLL_S = 0.25
#: The shortest time between two queries, and so between two writes to a reader: events in between are sent together.
PACE_S = 0.1
HEARTBEAT_S = 15.0
#: How long a browser waits before it reconnects.
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
    """New events for every reader. It lives in one event loop, and queries only while there are readers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.num_readers = 0
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False
        self._begin_at(0)

    def _begin_at(self, cursor: int) -> None:
        self._ids: list[int] = []
        self._kept: list[_Encoded] = []
        self._first = self._last = cursor  # all events after `_first`, up to `_last`, are kept
        self._news = asyncio.Event()  # set by the next query; each query has its own

    def close(self) -> None:
        """End every stream; readers reconnect to the next server."""
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
        """Yield the events after the id `after` (None: from now on) as server-sent events, without an end.

        `project`, `job_id` and `kinds` filter them. A `brief` stream sends only each event's id, job and kind. The
        stream ends if the database does not answer; the reader then reconnects. It also ends once the job is deleted,
        or once the reader is no longer welcome, which is checked every 15 s.
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
                if cursor > newest and (await self._page(cursor, kinds=kinds)).gap:  # of another database
                    yield said(_gap(cursor, newest))
                    cursor = newest
                asked_at = said_at = time.monotonic()
                while not self._is_closed:
                    if time.monotonic() - asked_at > HEARTBEAT_S:
                        if not await asyncio.to_thread(is_welcome):
                            return
                        asked_at = time.monotonic()
                    news = self._news  # taken before reading, so that none is missed
                    if cursor < self._first:
                        page = await self._page(cursor, project=project, job_id=job_id, kinds=kinds)
                        if page.gap:  # pruned while this reader was away or behind
                            yield said(_gap(cursor, self._last))
                            cursor = self._last
                            continue
                        found, cursor = [_encoded(event) for event in page.events], page.next_after
                    else:
                        found, cursor = self._kept[bisect_right(self._ids, cursor) :], max(cursor, self._last)
                    left_s = said_at + HEARTBEAT_S - time.monotonic()
                    if text := b"".join(said(event) for event in found if is_wanted(event)):
                        yield text
                        said_at = time.monotonic()
                    elif cursor >= self._last and not await _is_set(news, within_s=left_s):
                        # A comment for proxies, and for the reader the id up to which it has missed nothing.
                        yield f":\nid: {cursor}\n\n".encode()
                        said_at = time.monotonic()
                    if any(event.kind is EventKind.JOB_DELETED and event.job_id == job_id for event in found):
                        return
        except (NotFound, Unavailable) as error:  # NotFound: the job was deleted
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
        """Query for new events as long as there are readers."""
        while self.num_readers and not self._is_closed:
            num_rings = self._store.bell.num_rings
            try:
                page = await self._page(self._last)
            except Exception as error:  # one failed query must not stop all streams
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
        if page.gap:  # some were pruned before this query: each reader finds out from the database
            self._ids, self._kept, self._first = [], [], self._last
        if (num_old := len(self._ids) - _KEPT) > _KEPT:
            self._first = self._ids[num_old - 1]
            del self._ids[:num_old], self._kept[:num_old]
        self._announce()

    def _announce(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class EventStream(StreamingResponse):
    """Server-sent events. When the reader disconnects, their generator is closed at once."""

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        # By default nginx buffers streams.
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
    """Return the event that says that the events after `after` are gone; the stream resumes after `newest`."""
    data, now = {"after": after}, datetime.now(UTC)
    return _encoded(Event(id=newest, job_id=None, project=None, kind=EventKind.GAP, at=now, data=data))
