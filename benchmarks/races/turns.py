"""Runs that go on at the same time, one at a time: always the one that has had the least time so far.

So all of them meet the same machine in the same minutes, and ratios of their times hold even where it is slower for a
while.
"""

import threading
import time
from collections.abc import Collection

#: A run keeps its turn for so many seconds at least.
LEAST_S = 1.0


class Turns:
    """Mutable: the turns of `runs`, each from a thread of its own. The first turn is given at once."""

    def __init__(self, runs: Collection[str]) -> None:
        self._had = dict.fromkeys(runs, 0.0)
        self._changed = threading.Condition()
        self._since = time.monotonic()
        self._holder = min(self._had, key=lambda run: self._had[run], default=None)

    def seconds(self, run: str) -> float:
        """Return the seconds that `run` has had."""
        with self._changed:
            under_way = time.monotonic() - self._since if self._holder == run else 0.0
            return self._had[run] + under_way

    def wait(self, run: str) -> float:
        """Wait until it is the turn of `run`, whose turn so far may end now; return the seconds waited."""
        with self._changed:
            started = time.monotonic()
            if self._holder == run and started - self._since >= LEAST_S:
                self._pass_on(started)
            while self._holder != run:
                self._changed.wait()  # every other run goes on by calls that have a timeout
            return time.monotonic() - started

    def leave(self, run: str) -> None:
        """End the turns of `run`."""
        with self._changed:
            del self._had[run]
            if self._holder == run:
                self._pass_on(time.monotonic())

    def _pass_on(self, now: float) -> None:
        if self._holder in self._had:
            self._had[self._holder] += now - self._since
        self._holder, self._since = min(self._had, key=lambda run: self._had[run], default=None), now
        self._changed.notify_all()
