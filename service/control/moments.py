"""Times, as seconds since the epoch by a clock that may be set, and as users see them."""

from datetime import UTC, datetime


def moment(seconds: float) -> datetime:
    """Convert seconds since the epoch to a UTC datetime."""
    return datetime.fromtimestamp(seconds, UTC)


def moment_or_none(seconds: float | None) -> datetime | None:
    """Convert as `moment` does; None stays None."""
    return None if seconds is None else moment(seconds)


def is_ahead(until: float, *, now: float, within_s: float) -> bool:
    """Return whether to wait until a time, which was at most `within_s` ahead when it was set.

    A time further ahead shows that the clock was set back since: the wait is over.
    """
    return 0.0 < until - now < within_s + 1.0  # 1 s exceeds the rounding of such sums
