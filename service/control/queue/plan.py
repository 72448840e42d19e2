"""Decide who of the queue starts, who is paused for whom, and why the others wait. Pure: time is an input.

**The order.** Within a project a job's level is its priority's rank, one higher for every `aging_s` that it has waited.
Above `urgent` is one more level, of the overdue, where the job that has waited longest is first; in any other the
oldest is. Projects take turns, each with its first job. The highest level is first; between equals it is the project
with the smallest dominant share, of CPUs or GPUs, by its weight: weighted dominant-resource fairness (Ghodsi et al.,
NSDI 2011). As in Slurm's multifactor priority, a share is what the project has now and what it had, which counts half
after `HALF_LIFE_S`. Age counts against other projects only while the project has less than its share: else whoever
submits most would soon have the oldest jobs, and everything.

**Who starts.** In this order, each job starts that fits and that its quotas allow. The first that does not fit has room
kept for it (EASY backfilling: Lifka, JSSPP 1995). A job behind it starts only if it ends before that one could start at
the latest, by the budgets in seconds of what runs, or if it leaves that one its room. Where no budget tells, it must
end before the other has waited for `backfill_s`. A full quota is kept for the first job that needs it: later jobs of
that owner or project wait behind it.

**Nodes.** Ray places workers, so room is counted in the whole cluster. But a job does not start or grow where some of
its workers would find no node, even if all that runs were packed tightly: they would wait at Ray until the job fails.
Then all that is free is kept for it.

**Fewer workers.** A job that goes on with fewer (`workers.min`) starts with as many as the cluster holds. One that has
begun, and has lost its machines, takes what is free, without a wait for the rest. Later, when there is room that nobody
waits for, it is paused for a moment at a checkpoint, and goes on with more.

**Preemption.** If a job finds no room, and no room is kept for another, running jobs of strictly lower priority are
paused: the lowest first, of these the youngest, none before it has run for `min_run_s`. Age never pauses anybody. A
paused job is back at its old place, which may be ahead of the job it was paused for. It lets that one go first while
that one waits for room and nothing else. Otherwise it would take its old room, and be paused again, without end.

**Why nobody starves.** Take a job that fits the cluster and its quotas. After (4 - rank) x `aging_s` it is overdue. In
its project only jobs that have waited longer are before it then, and no new one joins them. While none of these
starts, the project's share halves again and again, until it is less than its due: the mean of all, by their weights.
Then the project's first job is before all but overdue jobs that have waited longer, which no new one joins either. So
in finite time our job is the first of all, and room is kept for it. Nobody passes who could delay it beyond a moment
that does not move away: running budgets end when they end, and `backfill_s` counts from its own waiting. Nobody is
paused for others meanwhile. Every running job ends, so the room comes. A job that is preempted later keeps what it had
waited, and has run for `min_run_s` at least: it gets on. It lets one job pass, of a higher priority, and that one
perhaps another of a still higher one; each of them starts in finite time.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from service.control.queue.capacity import Node, Shape, Size, conflicts, left_beside, left_by, num_placeable, total
from service.control.queue.order import Shares, in_order
from service.control.queue.queued import Place, Plan, Preemption, QuotaKey, Quotas, Rules, Running, Start, Waiting
from service.control.queue.quota_limits import Used, keys_of, quota_conflicts
from service.wire.queue import WaitKind

_START_S = 120.0  # that a training run takes besides its budget, at most


def plan(
    waiting: Sequence[Waiting],
    running: Sequence[Running],
    nodes: Sequence[Node],
    *,
    quotas: Quotas,
    recent: Mapping[str, Size],
    rules: Rules,
    now: float,
) -> Plan:
    """Return who starts, who is paused for whom, and the places of all that wait.

    Args:
        waiting: queued jobs, in any order.
        running: all jobs with an attempt, in any order.
        nodes: the cluster's.
        quotas: limits and weights, of those who have any.
        recent: what each project had on average, of jobs that ended; see `HALF_LIFE_S`.
        rules: the operator's settings.
        now: seconds since the epoch.
    """
    running = sorted(running, key=lambda job: job.job_id)  # a sum's last bit depends on the order, and may decide
    shares = Shares(total(nodes), quotas, running, recent, now=now)
    turn = _Turn(running, nodes, quotas, rules, now=now)
    for job in in_order(waiting, shares, rules, needs_room=turn.needs_room, now=now):
        place = turn.take(job)
        if place.kind not in (WaitKind.NEVER, WaitKind.BACK_OFF, WaitKind.QUOTA):
            shares.add(job.project, place.size)  # had it started: so places are fair, too
    return Plan(start=tuple(turn.start), pause=tuple(turn.pause), places=tuple(turn.places), grow=tuple(turn.growing()))


@dataclass
class _Reservation:
    """Room kept for a job: who passes it ends by `limit`, or takes no more than `extra`."""

    job: Waiting
    limit: float
    extra: Size


class _Turn:
    """The room as one waiting job after the other takes its turn."""

    def __init__(
        self, running: Sequence[Running], nodes: Sequence[Node], quotas: Quotas, rules: Rules, *, now: float
    ) -> None:
        self.running, self.nodes, self.quotas, self.rules, self.now = running, nodes, quotas, rules, now
        self.start: list[Start] = []
        self.pause: list[Preemption] = []
        self.places: list[Place] = []
        self._used = Used(quotas, running)
        self._free = total(nodes) - sum((job.size for job in running), Size())
        self._left: Sequence[Node] | None = None  # of each node; None: nothing has asked yet
        # With what is about to be given back, less what that is for.
        self._unclaimed = self._free + sum((job.size for job in running if job.is_leaving), Size())
        self._paused: set[str] = set()
        self._kept: _Reservation | None = None
        self._kept_quotas: dict[QuotaKey, tuple[Waiting, str]] = {}
        self._placing: dict[object, tuple[Size, int, str]] = {}

    def take(self, job: Waiting) -> Place:
        """Start the job, make room for it, or note why it waits."""
        size, trials, never = self._within_quota(job, *self._sized(job))
        number = len(self.places) + 1
        if never:
            place = Place(number, job, WaitKind.NEVER, size, detail=never)
        elif job.not_before > self.now:
            place = Place(number, job, WaitKind.BACK_OFF, size, trials)
        elif (full := self._full(job, size)) is not None:
            key, limit, ahead = full
            self._kept_quotas.setdefault(key, (job, limit))
            place = Place(number, job, WaitKind.QUOTA, size, trials, behind=ahead, quota=key, limit=limit)
        elif self._may_start(job, size, trials):
            self._begin(job, size, trials)
            place = Place(number, job, WaitKind.STARTS, size, trials)
        elif (fewer := self._fewer(job)) is not None:
            self._begin(job, fewer, 1)
            place = Place(number, job, WaitKind.STARTS, fewer)
        else:
            place = self._wait(number, job, size, trials)
        self.places.append(place)
        return place

    def needs_room(self, job: Waiting) -> bool:
        """Return whether nothing but room is in the job's way: no quota, no back-off, no cluster that is too small."""
        size, _, never = self._within_quota(job, *self._sized(job))
        return not never and job.not_before <= self.now and self._full(job, size) is None

    def _sized(self, job: Waiting) -> tuple[Size, int, str]:
        """Return what the job takes, how many training runs at a time that is, and why it is never placed."""
        key = (job.shape, job.owner, job.project) if self.quotas else job.shape
        if (known := self._placing.get(key)) is None:
            known = self._placing[key] = sized(job.shape, self.nodes, self.quotas, owner=job.owner, project=job.project)
        return known

    def _within_quota(self, job: Waiting, size: Size, trials: int, never: str) -> tuple[Size, int, str]:
        """Return the size at which the job's quotas have room for it, of those that one that has begun goes on with.

        Where none has room now, but a quota that has shrunk allows some, the job waits for the largest of these.
        """
        is_full = self._used.full(job.owner, job.project, size) is not None
        if not job.attempt or not (never or is_full):
            return size, trials, never
        fewer = [shape.one for shape in job.shape.reduced if not self._never(job, shape)]
        found = next((each for each in fewer if self._used.full(job.owner, job.project, each) is None), None)
        if found is None and never and fewer:
            found = fewer[0]
        return (size, trials, never) if found is None else (found, 1, "")

    def _never(self, job: Waiting, shape: Shape) -> bool:
        """Return whether the cluster, or a quota, is too small for the job in just this shape."""
        exactly = shape._replace(least=shape.num_workers)
        of_quotas = quota_conflicts(exactly, self.quotas, owner=job.owner, project=job.project)
        return bool(of_quotas or conflicts(exactly, self.nodes))

    def _full(self, job: Waiting, size: Size) -> tuple[QuotaKey, str, Waiting | None] | None:
        for key in keys_of(job.owner, job.project) if self._kept_quotas else ():
            if key in self._kept_quotas:
                ahead, limit = self._kept_quotas[key]
                return key, limit, ahead
        found = self._used.full(job.owner, job.project, size)
        return None if found is None else (*found, None)

    def _may_start(self, job: Waiting, size: Size, trials: int) -> bool:
        if not (size.fits(self._free) and size.fits(self._unclaimed)) or self._is_split(job, size):
            return False
        if self._kept is None or _ends_by(job, trials, began_at=self.now) <= self._kept.limit:
            return True
        if size.fits(self._kept.extra):
            self._kept.extra -= size
            return True
        return False

    def _is_split(self, job: Waiting, size: Size) -> bool:
        """Return whether the room that is free lies in pieces on several nodes, too small for the job's workers."""
        if self._left is None:
            self._left = left_beside((each.size for each in self.running), self.nodes)
        return num_placeable(job.shape, self._left) < size.workers

    def _fewer(self, job: Waiting) -> Size | None:
        """Return what a job that has begun can go on with now, if it may do with less than it had."""
        shapes = job.shape.reduced if job.attempt else ()
        return next((shape.one for shape in shapes if self._may_start(job, shape.one, 1)), None)

    def growing(self) -> Iterator[str]:
        """Yield the running jobs that can have more workers, of room and quota that no waiting job has or is kept."""
        if self._kept is not None or self.pause:
            return
        beside: dict[Size, Sequence[Node]] = {}  # the same for jobs of one size
        for job in self.running:
            if job.larger is None or not job.may_pause or self.now < job.grows_at:
                continue
            more = job.larger.one - job.size
            is_kept = any(key in self._kept_quotas for key in keys_of(job.owner, job.project))
            has_quota = not is_kept and self._used.may_grow(job.owner, job.project, more)
            if not (has_quota and more.fits(self._unclaimed)):
                continue
            if job.size not in beside:
                beside[job.size] = self._nodes_beside(job)
            if not conflicts(job.larger, beside[job.size]):
                self._unclaimed -= more
                self._used.grow(job.owner, job.project, more)
                yield job.job_id

    def _nodes_beside(self, job: Running) -> Sequence[Node]:
        """Return what the nodes have left for a job that runs: all that others do not take."""
        nodes = left_beside((each.size for each in self.running if each is not job), self.nodes)
        for start in self.start:
            nodes = left_by(start.job.shape, start.size.workers, nodes)
        return nodes

    def _begin(self, job: Waiting, size: Size, trials: int) -> None:
        self.start.append(Start(job, size, trials))
        assert self._left is not None  # it was asked for room
        self._left = left_by(job.shape, size.workers, self._left)
        self._free -= size
        self._unclaimed -= size
        self._used.add(job.owner, job.project, size)

    def _wait(self, number: int, job: Waiting, size: Size, trials: int) -> Place:
        missing = self._missing(job.shape, size)
        if self._kept is not None:
            return Place(number, job, WaitKind.BEHIND, size, trials, missing=missing, behind=self._kept.job)
        is_split = size.fits(self._free) and self._is_split(job, size)  # then others' end alone helps
        if not is_split and (size.fits(self._unclaimed) or self._preempt(job, size)):
            self._unclaimed -= size
            return Place(number, job, WaitKind.PREEMPTS, size, trials, missing=missing)
        self._kept = self._reserve(job, size)
        if is_split:
            self._kept.extra = Size()  # whoever took some could keep the rest in pieces
        return Place(number, job, WaitKind.ROOM, size, trials, missing=missing)

    def _missing(self, shape: Shape, size: Size) -> int:
        """Return for how many of the job's workers there is no room; 1 at least, since it does not start."""
        room = max(0.0, self._free.cpus) / shape.cpus
        if shape.gpus:
            room = min(room, max(0.0, self._free.gpus) / shape.gpus)
        return max(1, size.workers - math.floor(room + 1e-6))

    def _preempt(self, job: Waiting, size: Size) -> bool:
        """Have jobs of lower priority paused if that makes room; no more of them than it takes."""
        may_pause = [
            other
            for other in self.running
            if other.may_pause
            and other.priority.rank < job.priority.rank
            and self.now - other.began_at >= self.rules.min_run_s
            and other.job_id not in self._paused
        ]
        chosen: list[Running] = []
        room = self._unclaimed
        for other in sorted(may_pause, key=lambda each: (each.priority.rank, -each.began_at, each.job_id)):
            if size.fits(room):
                break
            chosen.append(other)
            room += other.size
        if not size.fits(room):
            return False
        for other in list(chosen):  # what came first may not be needed beside what came later
            if size.fits(room - other.size):
                chosen.remove(other)
                room -= other.size
        self.pause += [Preemption(other.job_id, job) for other in chosen]
        self._paused |= {other.job_id for other in chosen}
        self._unclaimed = room
        return True

    def _reserve(self, job: Waiting, size: Size) -> _Reservation:
        """Keep room for the job; find when it can start at the latest, and what it leaves others then."""
        room = self._unclaimed
        stay = [each for each in self.running if not each.is_leaving and each.job_id not in self._paused]
        ends = [(max(each.ends_by, self.now), each.size) for each in stay]
        ends += [(_ends_by(each.job, each.trials, began_at=self.now), each.size) for each in self.start]
        for ends_by, freed in sorted(ends, key=lambda each: each[0]):
            if ends_by == math.inf:
                break
            room += freed
            if size.fits(room):
                return _Reservation(job, ends_by, room - size)
        # Nobody knows when. What the job has room for already, and does not need, is for others.
        spare = self._unclaimed - size
        extra = Size(max(0.0, spare.cpus), max(0.0, spare.gpus))
        return _Reservation(job, job.queued_at + self.rules.backfill_s, extra)


def sized(shape: Shape, nodes: Sequence[Node], quotas: Quotas, *, owner: str, project: str) -> tuple[Size, int, str]:
    """Return what a job takes, how many training runs at a time, and why it is never placed, "": it is.

    All training runs go side by side if the cluster and the quotas ever have room for that, else one at a time; those
    of a sweep as many as there is ever room for, up to its `at_once`.
    """
    found = conflicts(shape, nodes)
    if not found:  # with as many workers as the cluster holds
        shape = next(
            each for each in (shape, *shape.smaller) if not conflicts(each._replace(least=each.num_workers), nodes)
        )
        found = quota_conflicts(shape, quotas, owner=owner, project=project)
    if found:
        return shape.one, 1, found[0].message
    most = shape.trials if shape.at_once is None else min(shape.at_once, shape.trials)
    placeable = num_placeable(shape, nodes)
    for number in (most,) if shape.at_once is None else range(most, 1, -1):
        together = shape._replace(lanes=shape.lanes * number, trials=1)
        has_room = placeable >= (shape.one * number).workers
        if has_room and not quota_conflicts(together, quotas, owner=owner, project=project):
            return shape.one * number, number, ""
    return shape.one, 1, ""


def fits_beside(job: Waiting, size: Size, running: Sequence[Running], nodes: Sequence[Node], quotas: Quotas) -> bool:
    """Return whether the job may still start beside those that run: another replica may have started some."""
    free = total(nodes) - sum((each.size for each in running), Size())
    return size.fits(free) and Used(quotas, running).full(job.owner, job.project, size) is None


def ends_by(seconds: float | None, shape: Shape, trials: int, *, began_at: float) -> float:
    """Return when a job that began then, with `trials` at a time, has surely ended; infinity: nobody knows."""
    if seconds is None:
        return math.inf
    return began_at + math.ceil(shape.trials / trials) * (seconds + _START_S)


def _ends_by(job: Waiting, trials: int, *, began_at: float) -> float:
    return ends_by(job.seconds, job.shape, trials, began_at=began_at)
