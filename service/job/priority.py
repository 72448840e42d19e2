"""The urgency of a job."""

from service.job.vocabulary import Vocabulary


class Priority(Vocabulary):
    """The urgency of a job; the last is the most urgent."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    URGENT = "urgent"

    @property
    def rank(self) -> int:
        """Return the rank of the priority; the least urgent is 0."""
        return _RANKS[self]


_RANKS = {priority: rank for rank, priority in enumerate(Priority)}
