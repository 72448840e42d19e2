"""The queue as users see it: places, reasons, quotas; and the one place that writes reasons as sentences."""

from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict, Field

from service.job.priority import Priority
from service.job.vocabulary import Vocabulary
from service.wire.access import OWNER
from service.wire.base import View


class WaitKind(Vocabulary):
    """Why a queued job does not run."""

    STARTS = "starts"  # it is being started
    ROOM = "room"  # it is the next one that fits nowhere yet; room is kept for it
    PREEMPTS = "preempts"  # jobs that are ending give it room; those of lower priority are paused for it
    BEHIND = "behind"  # room is kept for the job `behind`
    QUOTA = "quota"  # its owner or project has as much as the quota allows
    BACK_OFF = "back_off"  # its last attempts were lost; the next one begins at `until` at the earliest
    NEVER = "never"  # the cluster, as it is now, can never place it
    NO_CLUSTER = "no_cluster"  # Ray does not answer


class QuotaKind(Vocabulary):
    """Whose quota it is."""

    OWNER = "owner"
    PROJECT = "project"


#: The default quota, for everyone without their own.
EVERYONE = "*"
QuotaName = Annotated[str, Field(pattern=rf"^(\*|{OWNER})$")]


class QuotaLimits(View):
    """Limits on what all jobs of an owner or a project take together; null: none."""

    model_config = ConfigDict(extra="forbid")

    workers: int | None = Field(None, ge=0, le=1_000_000)
    gpus: float | None = Field(None, ge=0, le=1_000_000)
    running: int | None = Field(None, ge=0, le=1_000_000, description="jobs at a time")
    waiting: int | None = Field(None, ge=0, le=1_000_000, description="queued jobs; beyond it none is submitted")
    weight: float = Field(1.0, gt=0, le=1000, description="a project's share of the cluster, beside other projects'")


class QuotaView(QuotaLimits):
    """A quota, and whose it is."""

    model_config = ConfigDict(extra="ignore")

    kind: QuotaKind
    name: str = Field(description="`*`: of everyone without one of their own")
    set_by: str
    set_at: datetime


class QueuePlace(View):
    """A queued job's place, and why it waits."""

    place: int = Field(description="1 is the next to start")
    of: int = Field(description="jobs that wait")
    kind: WaitKind
    workers: int = Field(description="that the job asks for at a time")
    missing: int = Field(0, description="workers of these that there is no room for now")
    behind: str | None = Field(
        None, description="the job that room is kept for; null: none, or not the caller's to see"
    )
    behind_name: str | None = None
    behind_project: str | None = None
    behind_priority: Priority | None = None
    quota: QuotaKind | None = Field(None, description="whose quota is full")
    quota_name: str | None = None
    limit: str | None = Field(None, description="of the quota: workers, gpus or running")
    until: datetime | None = Field(None, description="when the next attempt may begin")
    is_preempted: bool = Field(False, description="it ran, and was paused for a job of higher priority")
    detail: str = Field("", description="why the cluster cannot place it, or is not there")
    sentence: str = Field("", description="all of this for a person")


class QueueEntry(View):
    """A job that waits, with its place."""

    job_id: str
    owner: str
    project: str
    priority: Priority
    queued_at: datetime = Field(description="moved on by the time that it did not wait: while it ran, or was paused")
    place: QueuePlace


class ProjectShare(View):
    """A project's part of the cluster."""

    project: str
    weight: float
    running: int
    waiting: int
    workers: int
    share: float = Field(description="of CPUs or GPUs, whichever is more, now")
    recent: float = Field(description="the same on average; a day ago counts half")


class QueueView(View):
    """The queue, first come first."""

    at: datetime | None = Field(description="when this was decided; null: not yet")
    of: int = Field(description="jobs that wait, those of other projects too")
    cpus: float = Field(description="that the cluster has")
    gpus: float
    free_cpus: float
    free_gpus: float
    entries: tuple[QueueEntry, ...]
    projects: tuple[ProjectShare, ...]
    next_after: int | None = Field(None, description="`after` of the next page")


def sentence(place: QueuePlace) -> str:
    """Format the place and the reason for people."""
    paused = f"; {_PREEMPTED}" if place.is_preempted else ""
    return f"{_ordinal(place.place)} of {place.of}; {_why(place)}{paused}"


_PREEMPTED = "it was paused for a job of higher priority, and goes on by itself"


def _why(place: QueuePlace) -> str:
    missing = f"waits for {place.missing} of {place.workers} workers"
    match place.kind:
        case WaitKind.STARTS:
            return "starts now"
        case WaitKind.ROOM:
            return missing
        case WaitKind.PREEMPTS:
            return f"{missing}, which jobs that are ending give back"
        case WaitKind.BEHIND:
            return f"{missing}; behind {_named(place)}"
        case WaitKind.QUOTA:
            ahead = f"; behind {_named(place)}" if place.behind_priority else ""
            return f"{_full(place.quota, place.quota_name, place.limit)}{ahead}"
        case WaitKind.BACK_OFF:
            return f"its next attempt begins at {place.until:%H:%M:%S} UTC at the earliest"
        case WaitKind.NEVER | WaitKind.NO_CLUSTER:
            return place.detail
    raise AssertionError(place.kind)


def summary(kind: WaitKind, *, quota: tuple[QuotaKind, str] | None, limit: str, detail: str, is_preempted: bool) -> str:
    """Return the stable part of the reason, which becomes the job's own `reason`."""
    if kind in (WaitKind.NEVER, WaitKind.NO_CLUSTER):
        return detail
    why = _full(*quota, limit) if quota else "waits for room on the cluster"
    return f"{why}; {_PREEMPTED}" if is_preempted else why


def _full(kind: QuotaKind | None, name: str | None, limit: str | None) -> str:
    return f"{kind} {name} has as many {_LIMITS[limit or '']} as its quota allows"


_LIMITS = {"": "jobs", "workers": "workers", "gpus": "GPUs", "running": "running jobs"}


def _named(place: QueuePlace) -> str:
    if not place.behind:
        return f"a job of another project (priority {place.behind_priority})"
    return f"{place.behind_name} of project {place.behind_project} ({place.behind}, priority {place.behind_priority})"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
