"""The urgency of a job."""

from enum import StrEnum


class Priority(StrEnum):
    """The urgency of a job; the last is the most urgent."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    URGENT = "urgent"

    @property
    def rank(self) -> int:
        """Return the priority's place, the least urgent first."""
        return _RANKS[self]


_RANKS = {priority: rank for rank, priority in enumerate(Priority)}
