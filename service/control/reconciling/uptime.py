"""Uptime of the service, its database, its clock and Ray, which decides whether silence counts against a driver."""

import math
from collections.abc import Callable

_STARTED_S = 60.0  # after a start, the clock may still be set
_JUMPED_S = 3600.0  # and after a jump it may jump back
_CHANCE_S = 3600.0  # a job must have had this long to begin before it fails for waiting
#: And the user of a paused one to resume it, in seconds.
CHANCE_TO_RESUME_S = 24 * 3600.0


class Uptime:
    """Tells whether drivers and jobs have had enough time. It reads no clock and starts no thread.

    Each driver has a lease to report. A job that has waited for too long has an hour to begin, and
    the user of one that was paused for too long has a day to resume it, or an hour once its deadline has moved.

    Args:
        lease_s: the lease of a driver, in seconds.
        failed_at: returns the time of the database's last failure, in seconds since the epoch.
        now: seconds since the epoch.
        steady: the same moment by a clock that nobody sets.
    """

    def __init__(self, *, lease_s: float, failed_at: Callable[[], float], now: float, steady: float) -> None:
        self._lease_s, self._failed_at = lease_s, failed_at
        self._up_since = now
        self._steady_from = now + _STARTED_S
        self._looked_at = (now, steady)
        self._ray_since = math.inf  # Ray has answered every round since; infinity: it does not answer

    def note(self, now: float, steady: float, *, late_s: float = 0.0) -> None:
        """Compare both clocks after a rest. If this process or its machine slept, the uptime starts again.

        A stopped process wakes late. If the machine sleeps or its clock is set, only the clock moves, perhaps in the
        middle of a round.

        Args:
            now: seconds since the epoch.
            steady: the same moment by a clock that nobody sets.
            late_s: by how much the rest took longer than it should.
        """
        now_before, steady_before = self._looked_at
        jump_s = (now - now_before) - (steady - steady_before)
        has_jumped = abs(jump_s) > self._lease_s / 2
        if has_jumped:
            self._steady_from = now + _JUMPED_S
        if has_jumped or late_s > self._lease_s / 2:
            self._up_since = now
        self._looked_at = now, steady  # last, as several threads come here: one that finds it finds the other as well

    def is_clock_steady(self, now: float) -> bool:
        """Return whether the clock can tell how old things are: a minute after a start, an hour after a jump."""
        return now > self._steady_from

    def note_ray(self, now: float, *, answers: bool) -> None:
        """Remember whether Ray answered in this round."""
        self._ray_since = min(now, self._ray_since) if answers else math.inf

    def leases_count(self, now: float) -> bool:
        """Return whether the API and the database have been up for one full lease."""
        return now - max(self._up_since, self._failed_at()) > self._lease_s

    def waits_count(self, now: float) -> bool:
        """Return whether the API, the database and Ray have been up long enough for a job to begin."""
        return now - max(self._up_since, self._failed_at(), self._ray_since) > _CHANCE_S

    def pauses_count(self, now: float, *, is_last_chance: bool) -> bool:
        """Return whether the API and the database have been up long enough for a user to resume a job.

        A last chance is an hour without a restart. Otherwise a service that is stopped every night, or whose database
        fails every day, would never end a pause.
        """
        if is_last_chance:
            return now - self._up_since > _CHANCE_S
        return now - max(self._up_since, self._failed_at()) > CHANCE_TO_RESUME_S
