"""All writes: one thread, with one transaction for all waiting writes (group commit).

A commit costs a disk sync, whatever it holds. With one transaction per request, sixteen clients waited over a
second at the 99th percentile; with group commit some 40 ms.

If several replicas write to one PostgreSQL, two groups may need the same key or each other's rows. The write that
loses is run again in its own transaction, where it holds nothing that another waits for.

SQLite ends the whole transaction if a statement finds the disk full, or cannot read or write. Savepoints do not
protect the other writes then, nor if COMMIT finds the disk full while it writes up to 2 MB of cached pages. Each write
of such a group is also run again in its own transaction, so that small ones pass.

A write may therefore run more than once before it is stored, and must change nothing but the database.
"""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from service.control import events
from service.control.database import rows
from service.control.database.faults import is_collision, is_full, is_outage, said
from service.errors import DatabaseUnavailable, Unavailable

_log = logging.getLogger(__name__)
T = TypeVar("T")
#: The message of reads and writes after the last one.
CLOSED = "the database is closed; the service is stopping"


@dataclass(frozen=True, kw_only=True)
class _Call:
    function: Callable[[Session], Any]
    future: "Future[Any]" = field(default_factory=Future)
    asked_at: float = field(default_factory=time.monotonic)


@dataclass
class _Outcome:
    call: _Call
    value: Any = None
    error: Exception | None = None
    collided: bool = False  # with another replica, so worth a second run


class Writer:
    """Runs functions in the database's only writing thread. Each result is returned after its commit.

    `bell` rings after each commit that has events.
    """

    def __init__(
        self,
        sessions: "sessionmaker[Session]",
        *,
        max_waiting: int = 2000,
        max_group: int = 256,
        timeout_s: float = 30.0,
        slow_s: float = math.inf,
        clock: Callable[[], float] = time.time,
        note_group: Callable[[int, float], None] = lambda size, seconds: None,
        note_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """`note_group` is called with each transaction's number of writes and seconds.

        `note_failure` is called on outages, and for writes that took longer than `slow_s`.
        """
        self._note_group, self._note_failure = note_group, note_failure
        self._sessions = sessions
        event.listen(sessions.kw["bind"], "before_cursor_execute", _note_change)
        self._max_group = max_group
        self._timeout_s, self._slow_s = timeout_s, slow_s
        self._oldest = math.inf  # when the oldest of the writes in progress was asked for, by the steady clock
        self._clock = clock
        self.bell = events.Bell()
        self._waiting: queue.Queue[_Call | None] = queue.Queue(max_waiting)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="wiretune-writer", daemon=True)
        self._thread.start()

    def write(self, function: Callable[[Session], T]) -> T:
        """Run `function` in a transaction and return its value once it is on disk. An error undoes only this write.

        Raises Unavailable if the database does not take writes, or not fast enough.
        """
        if self._closed:
            raise Unavailable(CLOSED)
        call = _Call(function=function)
        try:
            self._waiting.put(call, timeout=self._timeout_s)
        except queue.Full:
            self._note_failure()
            raise Unavailable(f"over {self._waiting.maxsize} writes wait for the database; try again") from None
        try:
            value: T = call.future.result(self._timeout_s)
        except TimeoutError:
            call.future.cancel()
            self._note_failure()
            raise Unavailable(
                f"the database took over {self._timeout_s:g} s to store this; it may be stored yet: try "
                "again with the same idempotency key"
            ) from None
        return value

    def post(self, function: Callable[[Session], object]) -> None:
        """Run `function` later, as `write` does. The caller neither waits nor learns of an error."""
        if self._closed:
            return
        with suppress(queue.Full):
            self._waiting.put_nowait(_Call(function=function))

    @property
    def num_waiting(self) -> int:
        """Return the number of waiting writes."""
        return self._waiting.qsize()

    @property
    def is_slow(self) -> bool:
        """Return whether a write has waited for longer than `slow_s`. Those in progress have waited longest."""
        return time.monotonic() - self._oldest > self._slow_s

    def close(self) -> None:
        """Store the waiting writes, then stop. Raises Unavailable if that takes longer than the timeout."""
        self._closed = True
        deadline = time.monotonic() + self._timeout_s
        with suppress(queue.Full):  # then the thread does not end either
            self._waiting.put(None, timeout=self._timeout_s)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            raise Unavailable(f"the database writer did not stop within {self._timeout_s:g} s")

    def _run(self) -> None:
        is_open = True
        while is_open:
            group, is_open = self._next_group()
            live = [call for call in group if call.future.set_running_or_notify_cancel()]
            self._oldest = live[0].asked_at if live else math.inf
            for outcome in self._commit(live):
                if outcome.collided:
                    (outcome,) = self._commit([outcome.call])
                failed = isinstance(outcome.error, Unavailable) and is_outage(outcome.error.__cause__)
                if failed or self.is_slow:
                    self._note_failure()
                if outcome.error is None:
                    outcome.call.future.set_result(outcome.value)
                else:
                    outcome.call.future.set_exception(outcome.error)
            self._oldest = math.inf

    def _next_group(self) -> tuple[list[_Call], bool]:
        group: list[_Call] = []
        call = self._waiting.get()
        while call is not None:
            group.append(call)
            if len(group) == self._max_group:
                break
            try:
                call = self._waiting.get_nowait()
            except queue.Empty:
                break
        return group, call is not None

    def _commit(self, calls: list[_Call]) -> list[_Outcome]:
        """Run `calls` in one transaction, and return their outcomes once they are on disk."""
        try:
            try:
                return self._commit_all(calls, _run_together)
            except _Fails:  # each gets a savepoint now, which costs a sixth of a submission; most groups need none
                return self._commit_all(calls, _run_apart)
        except _Undone as undone:
            return self._commit_each(calls, undone.error)
        except SQLAlchemyError as error:
            return self._commit_each(calls, error) if is_full(error) else _refused(calls, error)

    def _commit_each(self, calls: list[_Call], error: SQLAlchemyError) -> list[_Outcome]:
        """Run each of `calls` in its own transaction. A call that was already alone fails with `error`."""
        if len(calls) == 1:
            return _refused(calls, error)
        return [outcome for call in calls for outcome in self._commit([call])]

    def _commit_all(self, calls: list[_Call], run: Callable[[Session, list[_Call]], list[_Outcome]]) -> list[_Outcome]:
        began = time.perf_counter()
        with self._sessions.begin() as session:
            outcomes = run(session, calls)
            events.store(session, now=self._clock())
        self._note_group(len(calls), time.perf_counter() - began)
        if events.num_waiting(session):
            self.bell.ring()
        return outcomes


class _Fails(Exception):
    """A call of the group has failed; nothing of the group is stored yet."""


class _Undone(Exception):
    """The database has undone the whole transaction because of one statement's `error`."""

    def __init__(self, error: SQLAlchemyError) -> None:
        super().__init__(str(error))
        self.error = error


def _run_together(session: Session, calls: list[_Call]) -> list[_Outcome]:
    try:
        outcomes = [_run_or_refuse(session, call) for call in calls]
        rows.store(session)
    except Exception as error:
        _require_transaction(session, error)
        raise _Fails from error
    return outcomes


def _run_or_refuse(session: Session, call: _Call) -> _Outcome:
    """Run `call`. If it is refused before it changed anything, the others are not affected, and its locks stay."""
    before = _changes(session)
    try:
        return _run(session, call)
    except SQLAlchemyError:
        raise
    except Exception as error:  # the caller's, as below
        if _changes(session) != before:
            raise
        return _Outcome(call, error=error)


def _changes(session: Session) -> tuple[object, ...]:
    """Return a number that grows with every change in the open transaction, sent to the database or not."""
    pending = len(session.new) + len(session.dirty) + len(session.deleted)
    return pending, events.num_waiting(session), rows.num_waiting(session), _sent.num_changes


class _Sent(threading.local):
    """The number of changing statements that this thread has sent."""

    num_changes = 0


_sent = _Sent()


def _note_change(_connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
    _sent.num_changes += not statement.lstrip().startswith("SELECT")


def _run(session: Session, call: _Call) -> _Outcome:
    value = call.function(session)
    session.flush()  # so that errors occur before the commit
    return _Outcome(call, value=value)


def _require_transaction(session: Session, error: Exception) -> None:
    """Raise if `error` has ended the whole group's transaction: its connection was lost, or SQLite undid it."""
    if not isinstance(error, DBAPIError):
        return
    if error.connection_invalidated:
        raise error
    if session.get_bind().dialect.name == "sqlite" and is_outage(error):
        raise _Undone(error) from error


def _run_apart(session: Session, calls: list[_Call]) -> list[_Outcome]:
    return [_run_alone(session, call) for call in calls]


def _run_alone(session: Session, call: _Call) -> _Outcome:
    num_events = events.num_waiting(session)
    try:
        with session.begin_nested():
            outcome = _run(session, call)
            rows.store(session)
            return outcome
    except SQLAlchemyError as error:
        _require_transaction(session, error)
        _log.warning("a write was rolled back: %s", error)
        outcome = _Outcome(call, error=_not_stored(error), collided=is_collision(error))
    except Exception as error:  # raised in the caller; it must not end the group
        outcome = _Outcome(call, error=error)
    events.take_back(session, num_events)
    rows.drop(session)
    # The savepoint released this call's row locks, so another replica may change what it read.
    session.expire_all()
    return outcome


def _refused(calls: list[_Call], error: SQLAlchemyError) -> list[_Outcome]:
    _log.error("a group of %d writes was not stored: %s", len(calls), error)
    return [_Outcome(call, error=_not_stored(error)) for call in calls]


def _not_stored(error: SQLAlchemyError) -> Unavailable:
    unavailable = DatabaseUnavailable(f"the database did not store this: {said(error)}; try again")
    unavailable.__cause__ = error
    return unavailable
