"""The clock of training, which does not count what losing workers takes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from trainers.training.group import Group


class TrainingClock:
    """Seconds of training; it stands still while `group` recovers from the loss of workers."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.start()

    def start(self, at: float = 0.0) -> None:
        """Have it show `at` seconds now."""
        self._zero = self._now() - at

    def skip(self, seconds: float) -> None:
        """Leave out seconds that have passed."""
        self._zero += seconds

    @contextmanager
    def held(self) -> Iterator[None]:
        """Leave out what happens meanwhile."""
        started = self._now()
        yield
        self.skip(self._now() - started)

    def seconds(self) -> float:
        """Return what it shows."""
        return self._now() - self._zero

    def _now(self) -> float:
        return time.monotonic() - self._group.recovery.seconds
