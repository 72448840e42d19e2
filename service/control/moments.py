"""Moments, as seconds since the epoch by a clock that may be set, and as users see them."""

from datetime import UTC, datetime


def moment(seconds: float) -> datetime:
    """Return so many seconds since the epoch, in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def moment_or_none(seconds: float | None) -> datetime | None:
    """Return `moment(seconds)`; None stays None."""
    return None if seconds is None else moment(seconds)


def is_ahead(until: float, *, now: float, within_s: float) -> bool:
    """Return whether to wait until a moment, which was at most `within_s` ahead when it was set.

    One that is further ahead was set before the clock was set back: the wait is over.
    """
    return 0.0 < until - now < within_s + 1.0  # more than sums of such seconds are rounded by
