"""The order of waiting jobs: by priority and age within a project, by dominant share between projects. Pure."""

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from service.control.queue.capacity import Size
from service.control.queue.queued import Quotas, Rules, Running, Waiting
from service.control.queue.quota_limits import limits_of
from service.job.priority import Priority
from service.wire.queue import QuotaKind

#: A project's past use counts half after this many seconds.
HALF_LIFE_S = 24 * 3600.0
#: The weight of a project's mean past use relative to present use, which is lowest just after its jobs have ended.
_LATELY = 8.0
_OVERDUE = len(Priority)


class Shares:
    """The projects' weighted dominant shares, of present and recent use."""

    def __init__(
        self, capacity: Size, quotas: Quotas, running: Iterable[Running], recent: Mapping[str, Size], *, now: float
    ) -> None:
        self._capacity, self._quotas = capacity, quotas
        self._cpus: dict[str, float] = defaultdict(float, {name: _LATELY * size.cpus for name, size in recent.items()})
        self._gpus: dict[str, float] = defaultdict(float, {name: _LATELY * size.gpus for name, size in recent.items()})
        self._weights: dict[str, float] = {}
        self._running = {job.project for job in running}
        for job in running:
            had = 1.0 - 0.5 ** (max(0.0, now - job.began_at) / HALF_LIFE_S)
            self.add(job.project, job.size, factor=1.0 + _LATELY * had)

    def add(self, project: str, size: Size, *, factor: float = 1.0) -> None:
        self._cpus[project] += factor * size.cpus
        self._gpus[project] += factor * size.gpus

    def weight(self, project: str) -> float:
        if (weight := self._weights.get(project)) is None:
            weight = limits_of(self._quotas, QuotaKind.PROJECT, project).weight
            self._weights[project] = weight
        return weight

    def mean(self, waiting: Iterable[str]) -> float:
        """Return the due share: the weighted mean over all projects that run or wait."""
        projects = sorted({*waiting, *self._running})  # a sum's last bit depends on the order
        weights = {project: self.weight(project) for project in projects}
        return sum(weight * self.of(project) for project, weight in weights.items()) / (sum(weights.values()) or 1.0)

    def of(self, project: str) -> float:
        return dominant(Size(self._cpus[project], self._gpus[project]), self._capacity) / self.weight(project)


def dominant(size: Size, capacity: Size) -> float:
    """Return the dominant share: the larger of the CPU and GPU shares."""
    gpus = size.gpus / capacity.gpus if capacity.gpus else 0.0
    return max(size.cpus / capacity.cpus if capacity.cpus else 0.0, gpus)


def _level(job: Waiting, rules: Rules, now: float) -> int:
    return min(_OVERDUE, job.priority.rank + int(max(0.0, now - job.queued_at) / rules.aging_s))


def _rank(job: Waiting, rules: Rules, now: float) -> tuple[int, float, str, Waiting]:
    """Return the sort key of a job within its project."""
    level = _level(job, rules, now)
    return -level, job.queued_at if level == _OVERDUE else 0.0, job.job_id, job


def _outranks(other: Waiting, job: Waiting) -> bool:
    """Return whether `job` still gives way to `other`: priorities can change, and no two jobs wait for each other."""
    return job.is_preempted and other.priority.rank > job.priority.rank


def in_order(
    waiting: Sequence[Waiting], shares: Shares, rules: Rules, *, needs_room: Callable[[Waiting], bool], now: float
) -> Iterator[Waiting]:
    """Yield the jobs in the order of their turns. The caller adds each job's size, even if it waits, to `shares`.

    A job that was paused for another gives that job its turn, if `needs_room` says that it waits only for room.
    """
    queues: dict[str, list[tuple[int, float, str, Waiting]]] = defaultdict(list)
    for job in waiting:
        queues[job.project].append(_rank(job, rules, now))
    due = shares.mean(queues)
    made_way_for = {job.preempted_by for job in waiting if job.is_preempted}
    ahead: dict[str | None, Waiting] = {job.job_id: job for job in waiting if job.job_id in made_way_for}

    def turn(project: str) -> tuple[int, float, float, str]:
        level, since, _, job = queues[project][-1]
        share = shares.of(project)
        if share >= due:
            level, since = -job.priority.rank, 0.0
        return level, since, share, project

    for jobs in queues.values():
        jobs.sort(reverse=True)
    turns = [turn(project) for project in queues]
    heapq.heapify(turns)
    while turns:
        *_, project = turns[0]
        job = first = queues[project][-1][-1]
        while (other := ahead.get(job.preempted_by)) is not None and _outranks(other, job) and needs_room(other):
            job = other
        ahead.pop(job.job_id, None)
        if job is not first:
            queues[job.project].remove(_rank(job, rules, now))
            yield job
            turns = [turn(each) for each, jobs in queues.items() if jobs]
            heapq.heapify(turns)
            continue
        queues[project].pop()
        yield job
        if queues[project]:
            heapq.heapreplace(turns, turn(project))
        else:
            heapq.heappop(turns)
