"""Concurrent calls: several at a time, or one in the background that may never return."""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, wait
from typing import Generic, TypeVar

from service.errors import Unavailable
from service.log_lines import log_fields

_log = logging.getLogger(__name__)
Answer = TypeVar("Answer")
#: The seconds that a round waits for background calls.
PATIENCE_S = 2.0


def side_by_side(pool: Executor, acts: Mapping[str, Callable[[], None]]) -> None:
    """Call each job's act, by job id, concurrently, since acts wait for Ray and for database writes.

    An act that fails does not affect the others. Raises Unavailable after all have ended, if one did.
    """
    calls = [pool.submit(_guarded, job_id, act) for job_id, act in acts.items()]
    wait(calls)
    for call in calls:
        call.result()


def _guarded(job_id: str, act: Callable[[], None]) -> None:
    try:
        act()
    except Unavailable:  # the database: it is so for all
        raise
    except Exception:
        with log_fields(job=job_id):
            _log.exception("the turn of job %s failed; the others have theirs, and it has the next", job_id)


class Background(Generic[Answer]):
    """A call in its own daemon thread, which does not keep the process alive if it never returns."""

    def __init__(self, act: Callable[[], Answer], *, name: str) -> None:
        self._future: Future[Answer] = Future()
        self._began, self._ended = time.monotonic(), math.inf
        threading.Thread(target=self._call, args=(act,), name=f"wiretune-{name}", daemon=True).start()

    def _call(self, act: Callable[[], Answer]) -> None:
        try:
            answer = act()
        except Exception as error:
            self._ended = time.monotonic()
            self._future.set_exception(error)
        else:
            self._ended = time.monotonic()
            self._future.set_result(answer)

    def has_ended(self, *, patience_s: float = 0.0) -> bool:
        """Return whether the call has ended. Wait for that until it has taken `patience_s` in all."""
        wait([self._future], timeout=max(0.0, self._began + patience_s - time.monotonic()))
        return self._future.done()

    def answer(self) -> Answer:
        """Return the call's result or raise its error, once it has ended."""
        return self._future.result()

    @property
    def has_failed(self) -> bool:
        """Return whether the call has ended with an error."""
        return self.has_ended() and self._future.exception() is not None

    @property
    def asked_s(self) -> float:
        """The seconds since the call began."""
        return time.monotonic() - self._began

    @property
    def age_s(self) -> float:
        """The seconds since the call ended; `-inf` until then."""
        return time.monotonic() - self._ended
