"""Stored seconds as the moments that users see."""

from datetime import UTC, datetime


def moment(seconds: float) -> datetime:
    """Return so many seconds since the epoch, in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


def moment_or_none(seconds: float | None) -> datetime | None:
    """Return `moment(seconds)`; None stays None."""
    return None if seconds is None else moment(seconds)
