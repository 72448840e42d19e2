"""Check the use of jobs against the limits of owners and projects. Pure."""

from collections import defaultdict
from collections.abc import Iterable

from service.control.queue.capacity import Shape, Size
from service.control.queue.queued import QuotaKey, Quotas, Running
from service.job.problems import Problem
from service.wire.queue import EVERYONE, QuotaKind, QuotaLimits

_NO_LIMITS = QuotaLimits()


def limits_of(quotas: Quotas, kind: QuotaKind, name: str) -> QuotaLimits:
    """Return the limits of an owner or a project: its own, else the default ones, else none."""
    return quotas.get((kind, name)) or quotas.get((kind, EVERYONE)) or _NO_LIMITS


class Used:
    """The total use of running jobs, by owner and by project."""

    def __init__(self, quotas: Quotas, running: Iterable[Running]) -> None:
        self._quotas = quotas
        self._sizes: dict[QuotaKey, Size] = defaultdict(Size)
        self._running: dict[QuotaKey, int] = defaultdict(int)
        for job in running:
            self.add(job.owner, job.project, job.size)

    def add(self, owner: str, project: str, size: Size) -> None:
        for key in keys_of(owner, project):
            self._sizes[key] += size
            self._running[key] += 1

    def full(self, owner: str, project: str, size: Size) -> tuple[QuotaKey, str] | None:
        """Return the quota that has no room for the job, and which of its limits; None if all have room."""
        if not self._quotas:
            return None
        for key in keys_of(owner, project):
            limits, after = limits_of(self._quotas, *key), self._sizes[key] + size
            if limits.running is not None and self._running[key] + 1 > limits.running:
                return key, "running"
            if (limit := exceeded(after, limits)) is not None:
                return key, limit
        return None

    def after(self, ended: Iterable[Running]) -> "Used":
        """Return the use once these running jobs have ended."""
        then = Used(self._quotas, ())
        then._sizes |= self._sizes
        then._running |= self._running
        for job in ended:
            for key in keys_of(job.owner, job.project):
                then._sizes[key] -= job.size
                then._running[key] -= 1
        return then

    def grow(self, owner: str, project: str, more: Size) -> None:
        for key in keys_of(owner, project):
            self._sizes[key] += more

    def may_grow(self, owner: str, project: str, more: Size) -> bool:
        """Return whether every quota allows a running job to take `more`."""
        keys = keys_of(owner, project) if self._quotas else ()
        return all(exceeded(self._sizes[key] + more, limits_of(self._quotas, *key)) is None for key in keys)


def keys_of(owner: str, project: str) -> tuple[QuotaKey, QuotaKey]:
    return (QuotaKind.OWNER, owner), (QuotaKind.PROJECT, project)


def exceeded(size: Size, limits: QuotaLimits) -> str | None:
    if limits.workers is not None and size.workers > limits.workers:
        return "workers"
    if limits.gpus is not None and not Size(gpus=size.gpus).fits(Size(gpus=limits.gpus)):
        return "gpus"
    return None


def quota_conflicts(shape: Shape, quotas: Quotas, *, owner: str, project: str) -> list[Problem]:
    """Return why the owner's and project's quotas can never let the job start; empty if they can."""
    problems = []
    for kind, name in keys_of(owner, project):
        limits = limits_of(quotas, kind, name)
        if (limit := exceeded(shape.one, limits)) is not None:
            asked, allowed = (f"{getattr(each, limit):g}" for each in (shape.one, limits))
            message = f"the job asks for {asked} {limit}; allowed: 0 to {allowed}, the quota of {kind} {name}"
            pointer, value = (
                ("/workers/count", shape.num_workers) if limit == "workers" else ("/workers/gpus", shape.gpus)
            )
            problems.append(Problem(pointer=pointer, message=message, value=value))
        elif limits.running == 0:
            message = f"the quota of {kind} {name} allows no running job"
            problems.append(Problem(pointer="", message=message))
    return problems
