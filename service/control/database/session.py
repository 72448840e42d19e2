"""The open database, as the rest of the service uses it."""

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import TypeVar

from alembic.util import CommandError
from sqlalchemy import Engine, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from service.control.database import reserve
from service.control.database.engine import NUM_READERS, connect, of_one_moment, of_one_statement
from service.control.database.faults import is_outage, said
from service.control.database.locks import lock_service, prepare_state_dir
from service.control.database.schema import migrate, refuse_newer
from service.control.database.writer import CLOSED, Writer
from service.control.events import Bell
from service.control.messages import OPERATOR_ON
from service.control.models import JobRow
from service.errors import DatabaseUnavailable, Unavailable
from service.job.states import Occasion
from service.settings import Settings

T = TypeVar("T")
_FOR_A_PLACE_S = 10.0  # how long a read waits for others to end


class Database:
    """Sessions for reads, the one writer, and their common clock. Thread-safe.

    Reads and writes use `engine`; `now` returns the seconds since the epoch.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Callable[[], float],
        note_group: Callable[[int, float], None],
        opened: ExitStack,
        slow_s: float = math.inf,
        told_operator: Collection[Occasion] = (),
    ) -> None:
        """`note_group` is called with each transaction's number of writes and seconds; `opened` is closed with this.

        A write that waits for longer than `slow_s` counts as a failure of the database: renewals of leases wait, too.
        `told_operator` is what the operator's webhook is told of.
        """
        self.engine, self.now, self._opened = engine, clock, opened
        self._readers = sessionmaker(of_one_moment(engine))
        self._askers = sessionmaker(of_one_statement(engine))
        # Readers never take the writer's connection, however many they are: leases are renewed by writes.
        self._places = threading.BoundedSemaphore(NUM_READERS)
        self._is_closed = False
        self._failed_at, self._failing = -math.inf, threading.Lock()
        self._writer = Writer(
            sessionmaker(engine, expire_on_commit=False, info={OPERATOR_ON: told_operator}),
            slow_s=slow_s,
            clock=clock,
            note_group=note_group,
            note_failure=self._note_failure,
        )

    @classmethod
    def open(
        cls,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.time,
        note_group: Callable[[int, float], None] = lambda size, seconds: None,
    ) -> "Database":
        """Open the database of `settings`, created and migrated as needed. On a full disk it takes the reserve.

        Raises Unavailable where another process serves the same state dir or SQLite file, the database does not answer
        or is of a newer release, or the settings name none that can be used.
        """
        prepare_state_dir(settings)
        open_it = partial(cls._open, settings, clock=clock, note_group=note_group)
        try:
            return open_it()
        except Unavailable as error:
            is_in_use = error.__cause__ is None  # by a service, which has the reserve
            if is_in_use or not reserve.release(settings.state_dir):
                raise
        return open_it()

    @classmethod
    def _open(
        cls, settings: Settings, *, clock: Callable[[], float], note_group: Callable[[int, float], None]
    ) -> "Database":
        engine = connect(settings.resolved_database_url)
        with ExitStack() as opened:
            opened.enter_context(lock_service(settings))
            opened.callback(engine.dispose)  # before the lock is released
            try:
                migrate(engine)
            except (SQLAlchemyError, CommandError) as error:
                raise Unavailable(f"the database does not open: {said(error)}; check WIRETUNE_DATABASE_URL") from error
            told = settings.webhook_on if settings.webhook_url.get_secret_value() else ()
            return cls(
                engine,
                clock=clock,
                note_group=note_group,
                opened=opened.pop_all(),
                slow_s=settings.renew_s,
                told_operator=told,
            )

    def close(self) -> None:
        """Store waiting writes and release the database, even if the former raises Unavailable."""
        try:
            self._writer.close()
        finally:
            self._is_closed = True
            self._opened.close()

    def reading(self) -> AbstractContextManager[Session]:
        """Provide a session whose reads form one consistent snapshot. Raises Unavailable."""
        return self._session(self._readers)

    def asking(self) -> AbstractContextManager[Session]:
        """Provide a session for single statements, which is cheaper. Raises Unavailable."""
        return self._session(self._askers)

    @contextmanager
    def _session(self, sessions: "sessionmaker[Session]") -> Iterator[Session]:
        if self._is_closed:  # a new connection would never be closed
            raise Unavailable(CLOSED)
        if not self._places.acquire(timeout=_FOR_A_PLACE_S):
            raise Unavailable(f"{NUM_READERS} long reads keep the database busy, as many as it takes; try again")
        try:
            with sessions() as session:
                yield session
        except SQLAlchemyError as error:
            if is_outage(error):
                self._note_failure()
            raise DatabaseUnavailable(f"the database does not answer: {said(error)}; try again") from error
        finally:
            self._places.release()

    def write(self, function: Callable[[Session], T]) -> T:
        """Run `function` in a write transaction; see `Writer.write`."""
        return self._writer.write(function)

    def post(self, function: Callable[[Session], object]) -> None:
        """Run `function` later, as `write` does. The caller neither waits nor learns of an error."""
        self._writer.post(function)

    @property
    def num_waiting(self) -> int:
        """Return the number of waiting writes."""
        return self._writer.num_waiting

    @property
    def bell(self) -> Bell:
        """Rings after each commit of this process that has events."""
        return self._writer.bell

    def answer(self) -> None:
        """Raise Unavailable unless the database answers, and has its tables, and no newer release has migrated it."""
        with self.reading() as session:
            session.execute(select(JobRow.id).limit(1))
            refuse_newer(session.connection())

    @property
    def failed_at(self) -> float:
        """The time of the last failure, in seconds since the epoch; -inf if there was none. It is now during one."""
        if self._writer.is_slow:
            self._note_failure()
        with self._failing:
            self._failed_at = min(self._failed_at, self.now())  # the clock may have been set back since
            return self._failed_at

    def _note_failure(self) -> None:
        with self._failing:
            self._failed_at = self.now()
