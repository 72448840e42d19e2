"""Jobs as the queue sees them, and the queue's decision."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from service.control.moments import is_ahead
from service.control.queue.capacity import Shape, Size
from service.job.priority import Priority
from service.wire.queue import QuotaKind, QuotaLimits, WaitKind

QuotaKey = tuple[QuotaKind, str]
Quotas = Mapping[QuotaKey, QuotaLimits]
#: The longest wait of a job between two attempts, in seconds.
MAX_BACK_OFF_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The queue's settings, in seconds."""

    aging_s: float
    backfill_s: float
    min_run_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """A queued job. Times are seconds since the epoch."""

    job_id: str  # sorts by age
    name: str = ""
    owner: str
    project: str
    priority: Priority
    shape: Shape
    queued_at: float  # shifted by the time in which it did not wait
    not_before: float = 0.0
    deadline: float | None = None
    seconds: float | None = None  # budget of a training run
    attempt: int = 0
    reason: str = ""
    preempted_by: str | None = None  # its own id: it was paused to get more workers
    unreadable: str = ""  # the fields of its shape that this release cannot read: it is never placed

    @property
    def is_preempted(self) -> bool:
        """True if it was paused for another job."""
        return self.preempted_by not in (None, self.job_id)

    def backs_off(self, *, now: float) -> bool:
        """Return whether its next attempt has to wait after the last ones were lost."""
        return is_ahead(self.not_before, now=now, within_s=MAX_BACK_OFF_S)


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A job with an attempt. Times are seconds since the epoch."""

    job_id: str
    owner: str
    project: str
    priority: Priority
    size: Size
    began_at: float
    ends_by: float = math.inf
    may_pause: bool = True
    is_leaving: bool = False  # whether it is pausing, stopping or being cancelled
    larger: Shape | None = None  # with more workers, or more training runs at a time, if it has fewer than it could
    grows_at: float = 0.0  # when it has trained for the time between two checkpoints


class Start(NamedTuple):
    """A job that starts, with its size and its number of concurrent training runs."""

    job: Waiting
    size: Size
    trials: int


class Preemption(NamedTuple):
    """A running job that is paused for another."""

    job_id: str
    by: Waiting


class Place(NamedTuple):
    """A waiting job's place in the queue, and why it does not run."""

    number: int
    job: Waiting
    kind: WaitKind
    size: Size
    trials: int = 1  # training runs at a time, at that size
    missing: int = 0
    behind: Waiting | None = None
    quota: QuotaKey | None = None
    limit: str = ""
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The decision: the actions to take now, and the places of waiting jobs in order."""

    start: tuple[Start, ...] = ()
    pause: tuple[Preemption, ...] = ()
    grow: tuple[str, ...] = ()  # running jobs that should get more workers
    places: tuple[Place, ...] = ()
