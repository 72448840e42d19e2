"""Run the service's background loops, each in its own thread, so that a slow one delays no other."""

import logging
import threading
import time
from collections.abc import Callable, Mapping

from service.control.reconciling.uptime import Uptime
from service.control.telemetry import Telemetry
from service.errors import Unavailable

_log = logging.getLogger(__name__)
_JOIN_S = 60.0


class Loops:
    """Repeats each round from `start` to `stop`.

    Args:
        rounds: the rounds by loop name; a round takes the time, in seconds since the epoch.
        telemetry: counts rounds.
        uptime: is told when a rest took too long.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        rounds: Mapping[str, Callable[[float], None]],
        *,
        telemetry: Telemetry,
        uptime: Uptime,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._rounds, self._telemetry, self._uptime, self._clock = rounds, telemetry, uptime, clock
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, *, interval_s: float = 1.0) -> None:
        """Start the threads, which rest for `interval_s` between rounds."""
        for name in self._rounds:
            thread = threading.Thread(target=self._run, args=(name, interval_s), name=f"wiretune-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End the threads; one that hangs is left behind after a minute."""
        self._stopping.set()
        deadline = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, name: str, interval_s: float) -> None:
        while not self._stopping.is_set():
            try:
                with self._telemetry.round(name):
                    self._rounds[name](self._clock())
            except Unavailable as error:
                _log.warning("%s", error)
            except Exception:  # one failed round must not leave all jobs without an owner
                _log.exception("a round failed; the next one follows")
            began = time.monotonic()
            self._stopping.wait(interval_s)
            steady = time.monotonic()
            self._uptime.note(self._clock(), steady, late_s=steady - began - interval_s)
