"""The training clock, which does not count recovery from lost workers."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from trainers.training.group import Group


class TrainingClock:
    """A clock of training seconds. It stands still while `group` recovers from lost workers."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.start()

    def start(self, at: float = 0.0) -> None:
        """Set the clock to `at` seconds."""
        self._zero = self._now() - at

    def skip(self, seconds: float) -> None:
        """Subtract `seconds` that have passed."""
        self._zero += seconds

    @contextmanager
    def held(self) -> Iterator[None]:
        """Stop the clock during the block."""
        started = self._now()
        yield
        self.skip(self._now() - started)

    def seconds(self) -> float:
        """Return the seconds on the clock."""
        return self._now() - self._zero

    def _now(self) -> float:
        return time.monotonic() - self._group.recovery.seconds
