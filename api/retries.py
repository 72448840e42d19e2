"""Decide whether and when to retry a failed call; opens no connection itself."""

import math
import os
import random
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from api.calls import Call
from api.failures import ApiError, Unreachable

#: A restart of the service that takes no longer than this goes unnoticed.
PATIENCE_S = 20.0
#: Calls that wait for a job keep trying this long: the job trains on while the service is away.
AWAY_S = 600.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
#: Rate limits count per minute, so a 429 never asks for a longer wait.
_WINDOW_S = 60.0


class Patience:
    """Decides after each failure of one call whether and when to retry it.

    A service that has never answered is not retried. A refusal counts as an answer.

    Args:
        call: the call that failed.
        retry_s: how long to retry; 0: never. The wait that the first 429 asks for is not counted.
        within_s: when the caller gives up, whatever the service asks for.
        has_answered: whether the service answered before this call.
        note_absence: called with the seconds since the first failure, once they exceed a restart's.
    """

    def __init__(
        self,
        call: Call[Any],
        retry_s: float,
        *,
        within_s: float = math.inf,
        has_answered: bool = True,
        note_absence: Callable[[float], None] = lambda _: None,
    ) -> None:
        now = self._began = time.monotonic()
        self._call, self._deadline, self._end, self._pause_s = call, now + retry_s, now + within_s, _FIRST_PAUSE_S
        self._note_absence = note_absence
        self._may_sit_out = retry_s > 0
        self._has_answered = has_answered
        self._lost: Unreachable | None = None  # of an attempt that may have queued a job

    def pause_s(self, error: ApiError | Unreachable) -> float:
        """Return how long to wait before the next attempt.

        If there is none, raises `error`, or the failure of an earlier attempt that may have queued a job.
        """
        self._has_answered = self._has_answered or isinstance(error, ApiError)
        if isinstance(error, Unreachable) and error.may_be_queued:
            self._lost = error
        asked_s = (error.retry_after_s or 0.0) if isinstance(error, ApiError) else 0.0
        if self._may_sit_out and _is_limit(error) and asked_s <= _WINDOW_S:
            self._may_sit_out = False
            self._deadline += asked_s
        pause_s = max(asked_s, self._pause_s * random.uniform(0.5, 1.0))
        is_late = time.monotonic() + pause_s > min(self._deadline, self._end)
        if is_late or not self._has_answered or not may_repeat(self._call, error):
            raise self._lost if self._lost is not None and is_passing(error) else error
        if (away_s := time.monotonic() - self._began) >= PATIENCE_S and not _is_limit(error):  # a 429 is an answer
            self._note_absence(away_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return pause_s


class Restarts:
    """Decides after each break of a download whether to continue, and truncates what would come twice.

    Patience is counted from a break, not from the start: a long download takes longer than that. A break with more
    bytes than any before it starts a new count.
    """

    def __init__(self, out: BinaryIO, patience: Callable[[], Patience]) -> None:
        self._out, self._begin = out, patience
        self._patience: Patience | None = None
        self._most = 0
        try:
            # When a shell appends (`>>`), `tell` is 0, but writes go to the end.
            self._start: int | None = out.seek(0, os.SEEK_END) if _appends(out) else out.tell()
        except (AttributeError, OSError):  # it cannot seek
            self._start = None

    def pause_s(self, error: Unreachable, num_bytes: int) -> float:
        """Return how long to wait before the next attempt, after `num_bytes`; raises `error` where there is none."""
        if self._start is None:
            raise error
        if self._patience is None or num_bytes > self._most:
            self._patience, self._most = self._begin(), num_bytes
        pause_s = self._patience.pause_s(error)
        try:
            self._out.truncate()  # removes nothing; it tests whether `go_back` could
        except OSError:  # e.g. a device
            raise error from None
        return pause_s

    def go_back(self) -> None:
        """Leave `out` as it was before the download."""
        if self._start is not None:
            self._out.seek(self._start)
            self._out.truncate()


def _appends(out: BinaryIO) -> bool:
    """Return whether every write goes to the end of the file."""
    try:
        import fcntl  # not on Windows

        return bool(fcntl.fcntl(out.fileno(), fcntl.F_GETFL) & os.O_APPEND)
    except (ImportError, AttributeError, OSError):  # it is in memory
        return False


class StreamFailures:
    """Consecutive failures of a stream, with no sign of life from the service between them.

    Patience is counted from the first of them: the stream may have been silent for long before.
    """

    def __init__(self, patience: Callable[[], Patience]) -> None:
        self._begin = patience
        self._patience: Patience | None = None

    def end(self) -> None:
        """Note a sign of life from the service."""
        self._patience = None

    def pause_s(self, error: ApiError | Unreachable) -> float:
        """Return how long to wait before reconnecting. Raises `error` if it is not worth it."""
        self._patience = self._patience or self._begin()
        return self._patience.pause_s(error)


def may_repeat(call: Call[Any], error: ApiError | Unreachable) -> bool:
    """Return whether a retry may succeed without doing the work twice."""
    if isinstance(error, Unreachable):
        return call.is_repeatable or not error.was_sent
    return _is_limit(error) or (error.status == 503 and call.is_repeatable)


def _is_limit(error: ApiError | Unreachable) -> bool:
    """Return whether the rate limit refused the call: nothing was done, and the next window has room."""
    return isinstance(error, ApiError) and error.status == 429


def is_passing(error: ApiError | Unreachable) -> bool:
    """Return whether the failure may pass: the service, or what it needs, is away, busy or restarting."""
    return isinstance(error, Unreachable) or error.status in (429, 503)
