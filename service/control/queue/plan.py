"""Decide which queued jobs start, which running jobs are paused for them, and why others wait. Pure: time is an input.

**The order.** Within a project, a job's level is its priority's rank plus one for every `aging_s` that it has waited.
Above `urgent` is one more level for overdue jobs, where the job that has waited longest is first. In other levels, the
oldest job is first. Projects take turns, each with its first job. The highest level goes first. Between equal levels,
the project with the smallest weighted dominant share of CPUs or GPUs goes first: weighted dominant-resource fairness
(Ghodsi et al., NSDI 2011). As in Slurm's multifactor priority, a share counts present and past use, and past use
counts half after `HALF_LIFE_S`. Age counts against other projects only while the project has less than its share.
Otherwise the project that submits most would soon have the oldest jobs, and get everything.

**Starts.** In this order, each job starts if it fits and its quotas allow it. Room is reserved for the first job that
does not fit (EASY backfilling: Lifka, JSSPP 1995). A later job starts only if it ends by the latest start of that
first job, or leaves it its room. The latest start follows from the running jobs' budgets in seconds. If they do not
tell, a later job must end before the first has waited for `backfill_s`. A full quota is reserved for the first job
that needs it: later jobs of that owner or project wait behind it. A job that waits for room counts in its own quotas.
A job of lower priority, or a younger one, may still use these if it ends by that latest start and within `backfill_s`.
While only such jobs fill the quota, the room stays reserved. Otherwise others would take it before they end.

**Nodes.** Ray places workers, so room is counted over the whole cluster. But a job does not start or grow if some of
its workers would find no node even with all running workers packed tightly: they would wait in Ray until the job
fails. In that case, all free room on nodes that can hold one of its workers is reserved for it: another job passes
only if it finds no room there. The same holds for a job that asks for memory or a kind of GPU. Ray may place a job on
other nodes than the packing does. So on nodes that the first job cannot use, all others may start for `backfill_s`.

**Fewer workers.** A job that may run with fewer workers (`workers.min`) starts with as many as the cluster holds. A job
that has begun and lost its machines takes the free room, without a wait for the rest. When there is room later that
nobody waits for, it is paused briefly at a checkpoint, and resumes with more workers.

**Fewer training runs at a time.** A job of several training runs begins in the free room with fewer of them at a time,
down to one, and runs them in more rounds. It waits for room for more only if room for all is about to come. The same
holds within quotas. When there is room later for so many more that they save a round, it is paused and resumes like a
job with fewer workers, and as rarely.

**Preemption.** If a job finds no room, and no room is reserved for another, running jobs of strictly lower priority are
paused: the lowest priority first, then the youngest, and none before it has run for `min_run_s`. Age never preempts. A
paused job returns to its old place, which may be ahead of the job it was paused for. It lets that job go first while
room is all that job waits for. Otherwise it would take its old room and be paused again, without end.

**Why no job starves.** Take a job that fits the cluster and its quotas. After (4 - rank) x `aging_s` it is overdue. In
its project, only jobs that have waited longer are then ahead of it, and no new job joins them. While none of these
starts, the project's share halves again and again, until it is less than its due: the weighted mean of all shares.
Then the project's first job is ahead of all but overdue jobs that have waited longer, and no new job joins these
either. So in finite time, our job is first of all, and room is reserved for it. No job may pass that could delay it
beyond a fixed time: running budgets end when they end, and `backfill_s` counts from its own waiting. No job is paused
for others meanwhile. Every running job ends, so the room comes. A job that is preempted later keeps its waiting time,
and has run for at least `min_run_s`, so it makes progress. It lets one job of higher priority pass, and that one
perhaps another of still higher priority. Each of them starts in finite time.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from service.control.queue.capacity import Node, Shape, Size, conflicts, left_beside, left_by, num_placeable, total
from service.control.queue.order import Shares, in_order
from service.control.queue.queued import Place, Plan, Preemption, QuotaKey, Quotas, Rules, Running, Start, Waiting
from service.control.queue.quota_limits import Used, keys_of, quota_conflicts
from service.wire.queue import WaitKind

_START_S = 120.0  # the most that a training run takes besides its budget
_Full = tuple[QuotaKey, str, Waiting | None]  # a quota without room, which of its limits, and the job it is kept for


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
    """Return the jobs to start, the jobs to pause for others, and the places of all waiting jobs.

    Args:
        waiting: queued jobs, in any order.
        running: all jobs with an attempt, in any order.
        nodes: the cluster's.
        quotas: the limits and weights of those who have any.
        recent: each project's mean use by ended jobs; see `HALF_LIFE_S`.
        rules: the operator's settings.
        now: seconds since the epoch.
    """
    running = sorted(running, key=lambda job: job.job_id)  # the last bit of a sum depends on the order, and may decide
    shares = Shares(total(nodes), quotas, running, recent, now=now)
    turn = _Turn(running, nodes, quotas, rules, now=now)
    for job in in_order(waiting, shares, rules, needs_room=turn.needs_room, now=now):
        place = turn.take(job)
        if place.kind not in (WaitKind.NEVER, WaitKind.BACK_OFF, WaitKind.QUOTA):
            shares.add(job.project, place.size)  # as if it had started, so that places are fair, too
    return Plan(start=tuple(turn.start), pause=tuple(turn.pause), places=tuple(turn.places), grow=tuple(turn.growing()))


@dataclass
class _Reservation:
    """Room reserved for a job.

    Another job may pass if it ends by `limit`, takes no more than `extra`, or would find no room on `nodes`: the most
    that can be free of those that can hold a worker of the first. The first counts in `used`: the use of the quotas by
    jobs that do not end soon.
    """

    job: Waiting
    limit: float
    extra: Size
    nodes: Sequence[Node]
    used: Used
    _uses: dict[Shape, bool] = field(default_factory=dict)  # waiting jobs have few different shapes

    def uses(self, shape: Shape) -> bool:
        """Return whether such a job would find room on `nodes`."""
        if shape not in self._uses:
            self._uses[shape] = num_placeable(shape, self.nodes) > 0
        return self._uses[shape]


class _Turn:
    """The room that is left as waiting jobs take their turns."""

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
        self._holds: dict[Shape, int] = {}  # how many workers of a shape that is room for
        # Free room plus what leaving jobs give back, minus what that is meant for.
        self._unclaimed = self._free + sum((job.size for job in running if job.is_leaving), Size())
        self._gone = {job.job_id for job in running if job.is_leaving}  # and those that are paused in this turn
        self._promised: list[tuple[Shape, int]] = []  # the workers that have got room, now or when it comes
        self._kept: _Reservation | None = None
        self._kept_quotas: dict[QuotaKey, tuple[Waiting, str]] = {}
        self._ahead: dict[QuotaKey, Waiting] = {}  # the first job of each quota that counts while others pause for it
        self._placing: dict[object, tuple[Size, int, str]] = {}

    def take(self, job: Waiting) -> Place:
        """Start the job, make room for it, or note why it waits."""
        size, trials, never = self._within_quota(job, *self._sized(job))
        number = len(self.places) + 1
        if never:
            place = Place(number, job, WaitKind.NEVER, size, detail=never)
        elif job.backs_off(now=self.now):
            place = Place(number, job, WaitKind.BACK_OFF, size, trials)
        elif (full := self._full(job, size, trials)) is not None:
            key, limit, ahead = full
            self._keep_quota(job, size, full)
            place = Place(number, job, WaitKind.QUOTA, size, trials, behind=ahead, quota=key, limit=limit)
        elif self._may_start(job, size, trials):
            place = self._begin(number, job, size, trials)
        elif (fewer := self._fewer(job, trials)) is not None:
            place = self._begin(number, job, *fewer)
        else:
            place = self._without_room(number, job, size, trials)
        self.places.append(place)
        return place

    def needs_room(self, job: Waiting) -> bool:
        """Return whether the job waits only for room: not for a quota, a back-off or a larger cluster."""
        size, trials, never = self._within_quota(job, *self._sized(job))
        return not (never or job.backs_off(now=self.now)) and self._full(job, size, trials) is None

    def _sized(self, job: Waiting) -> tuple[Size, int, str]:
        """Return the job's size, its number of concurrent training runs, and why it can never be placed."""
        key = (job.shape, job.owner, job.project) if self.quotas else job.shape
        if (known := self._placing.get(key)) is None:
            known = self._placing[key] = sized(job.shape, self.nodes, self.quotas, owner=job.owner, project=job.project)
        return known

    def _within_quota(self, job: Waiting, size: Size, trials: int, never: str) -> tuple[Size, int, str]:
        """Shrink a job to a size for which its quotas have room: fewer training runs at a time, or fewer workers.

        Only a job that has begun, and can run with fewer workers, gets these. If its quotas have room for no size now,
        but a reduced quota allows some, the job waits for the largest of these.
        """
        is_full = self._exceeded(job, size, trials) is not None
        for number in _at_a_time(job.shape, trials - 1) if is_full and not never else ():
            if self._exceeded(job, job.shape.one * number, number) is None:
                return job.shape.one * number, number, ""
        if not job.attempt or not (never or is_full):
            return size, trials, never
        fewer = [shape.one for shape in job.shape.reduced if not self._never(job, shape)]
        found = next((each for each in fewer if self._exceeded(job, each, 1) is None), None)
        if found is None and never and fewer:
            found = fewer[0]
        return (size, trials, never) if found is None else (found, 1, "")

    def _never(self, job: Waiting, shape: Shape) -> bool:
        """Return whether the cluster or a quota is too small for the job in exactly this shape."""
        exactly = shape._replace(least=shape.num_workers)
        of_quotas = quota_conflicts(exactly, self.quotas, owner=job.owner, project=job.project)
        return bool(of_quotas or conflicts(exactly, self.nodes))

    def _full(self, job: Waiting, size: Size, trials: int) -> _Full | None:
        """Return the quota that is full or kept for another; None: all have room for the job."""
        for key in keys_of(job.owner, job.project) if self._kept_quotas else ():
            if key in self._kept_quotas:
                ahead, limit = self._kept_quotas[key]
                return key, limit, ahead
        return self._exceeded(job, size, trials)

    def _exceeded(self, job: Waiting, size: Size, trials: int) -> _Full | None:
        """Return the quota that the job exceeds, now or beside the job for which room is reserved."""
        if not self.quotas:
            return None
        if (found := self._used.full(job.owner, job.project, size)) is not None:
            return (*found, self._ahead.get(found[0]))
        kept = self._kept
        if kept is None or self._ends_soon(job, trials, kept):
            return None
        found = kept.used.full(job.owner, job.project, size)
        return None if found is None else (*found, kept.job)

    def _ends_soon(self, job: Waiting, trials: int, kept: _Reservation) -> bool:
        """Return whether the job may use what the reservation needs of a quota: it ends in time, and soon."""
        soon = min(kept.limit, self.now + self.rules.backfill_s)
        return _is_behind(job, kept.job) and _ends_by(job, trials, began_at=self.now) <= soon

    def _keep_quota(self, job: Waiting, size: Size, full: _Full) -> None:
        """Keep a full quota for the job, or its room if only jobs that passed it fill the quota, for a short time."""
        key, limit, ahead = full
        if self._kept is None and ahead is None:
            passing = self._passing(job)
            if self._used.after(passing).full(job.owner, job.project, size) is None:
                self._kept = self._reserve(job, size)
                self._kept.limit = max([self._kept.limit, *(each.ends_by for each in passing)])
                return
        if self._kept is None or ahead is not self._kept.job:  # that one counts without running
            self._kept_quotas.setdefault(key, (job, limit))

    def _passing(self, job: Waiting) -> Sequence[Running]:
        """Return the running jobs of its quotas that passed the job, and end soon, or should have ended lately."""
        return [
            each
            for each in self.running
            if (each.owner == job.owner or each.project == job.project)
            and _is_behind(each, job)
            and abs(each.ends_by - self.now) <= self.rules.backfill_s
        ]

    def _may_start(self, job: Waiting, size: Size, trials: int) -> bool:
        if not (size.fits(self._free) and size.fits(self._unclaimed)) or self._is_split(job, size):
            return False
        if self._exceeded(job, size, trials) is not None:  # in fewer rounds it may end too late for the quota
            return False
        kept = self._kept
        if kept is None or _ends_by(job, trials, began_at=self.now) <= kept.limit:
            return True
        passes = size.fits(kept.extra) or not kept.uses(job.shape)
        if passes:
            kept.extra = _spare(kept.extra, size)
        return passes

    def _is_split(self, job: Waiting, size: Size) -> bool:
        """Return whether the free room is fragmented over nodes in pieces too small for the job's workers."""
        return self._placeable(job.shape) < size.workers

    def _placeable(self, shape: Shape) -> int:
        """Return how many of the job's workers the free room of the nodes holds."""
        if shape not in self._holds:
            self._holds[shape] = num_placeable(shape, self._by_node())
        return self._holds[shape]

    def _by_node(self) -> Sequence[Node]:
        """Return the free room of each node that is promised to nobody."""
        if self._left is None:
            self._left = left_beside((each.size for each in self.running), self.nodes)
        return self._left

    def _promise(self, job: Waiting, size: Size) -> None:
        self._left, self._holds = left_by(job.shape, size.workers, self._by_node()), {}
        self._unclaimed -= size
        self._promised.append((job.shape, size.workers))

    def _fewer(self, job: Waiting, trials: int) -> tuple[Size, int] | None:
        """Return a smaller size, and the training runs at a time, at which a job that has begun can resume now."""
        shapes = tuple(job.shape.reduced) if job.attempt else ()
        if shapes and (number := self._in_rounds(job, trials)) is not None:
            return job.shape.one * number, number
        return next(((shape.one, 1) for shape in shapes if self._may_start(job, shape.one, 1)), None)

    def _in_rounds(self, job: Waiting, trials: int) -> int | None:
        """Return the most training runs below `trials` with which the job can start now, or None."""
        one = job.shape.one
        if trials == 1 or not one.fits(self._free):
            return None
        most = min(trials - 1, self._placeable(job.shape) // one.workers)
        return next((num for num in _at_a_time(job.shape, most) if self._may_start(job, one * num, num)), None)

    def growing(self) -> Iterator[str]:
        """Yield the running jobs that can have more workers, from room and quota that no waiting job needs.

        These are for its training runs, or for more of them at a time.
        """
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
                beside[job.size] = self._nodes_without({job.job_id}, self.nodes)
            if not conflicts(job.larger, beside[job.size]):
                self._unclaimed -= more
                self._used.grow(job.owner, job.project, more)
                yield job.job_id

    def _nodes_without(self, gone: Set[str], nodes: Sequence[Node]) -> Sequence[Node]:
        """Return the nodes' free room once the jobs `gone` have left, and all that is promised is taken."""
        nodes = left_beside((each.size for each in self.running if each.job_id not in gone), nodes)
        for shape, num_workers in self._promised:
            nodes = left_by(shape, num_workers, nodes)
        return nodes

    def _begin(self, number: int, job: Waiting, size: Size, trials: int) -> Place:
        self.start.append(Start(job, size, trials))
        self._promise(job, size)
        self._free -= size
        self._used.add(job.owner, job.project, size)
        if self._kept is not None and not self._ends_soon(job, trials, self._kept):
            self._kept.used.add(job.owner, job.project, size)
        return Place(number, job, WaitKind.STARTS, size, trials)

    def _without_room(self, number: int, job: Waiting, size: Size, trials: int) -> Place:
        """Make room for the job, start it with fewer training runs at a time, or note why it waits."""
        missing = self._missing(job.shape, size)
        if self._kept is None and self._preempt(job, size):
            self._promise(job, size)
            self._used.add(job.owner, job.project, size)  # a later job would fill its quotas otherwise
            for key in keys_of(job.owner, job.project):
                self._ahead.setdefault(key, job)
            return Place(number, job, WaitKind.PREEMPTS, size, trials, missing=missing)
        if (fewer := self._in_rounds(job, trials)) is not None:
            return self._begin(number, job, job.shape.one * fewer, fewer)
        if self._kept is not None:
            return Place(number, job, WaitKind.BEHIND, size, trials, missing=missing, behind=self._kept.job)
        self._kept = self._reserve(job, size)
        return Place(number, job, WaitKind.ROOM, size, trials, missing=missing)

    def _missing(self, shape: Shape, size: Size) -> int:
        """Return for how many of the job's workers there is no room; at least 1, since it does not start."""
        room = max(0.0, self._free.cpus) / shape.cpus
        if shape.gpus:
            room = min(room, max(0.0, self._free.gpus) / shape.gpus)
        if shape.memory_gb:
            room = min(room, max(0.0, self._free.memory_gb) / shape.memory_gb)
        return max(1, size.workers - math.floor(min(room, size.workers) + 1e-6))

    def _preempt(self, job: Waiting, size: Size) -> bool:
        """Pause jobs of lower priority if that makes room, and no more of them than needed; none if room comes."""
        may_pause = [
            other
            for other in self.running
            if other.may_pause
            and other.priority.rank < job.priority.rank
            and self.now - other.began_at >= self.rules.min_run_s
            and other.job_id not in self._gone
        ]
        in_turn = sorted(may_pause, key=lambda each: (each.priority.rank, -each.began_at, each.job_id))
        if not self._has_room(job, size, in_turn):
            return False
        num = bisect_left(range(len(in_turn)), True, key=lambda num: self._has_room(job, size, in_turn[:num]))
        chosen = in_turn[:num]
        for other in in_turn[:num]:  # earlier choices may be unnecessary given later ones, or be on other nodes
            fewer = [each for each in chosen if each is not other]
            if self._has_room(job, size, fewer):
                chosen = fewer
        self.pause += [Preemption(other.job_id, job) for other in chosen]
        self._gone |= {other.job_id for other in chosen}
        self._unclaimed = sum((other.size for other in chosen), self._unclaimed)
        return True

    def _has_room(self, job: Waiting, size: Size, paused: Sequence[Running]) -> bool:
        """Return whether the nodes have room for the job's workers once these and all leaving jobs are gone."""
        if not size.fits(sum((other.size for other in paused), self._unclaimed)):
            return False
        gone = self._gone | {other.job_id for other in paused}
        return num_placeable(job.shape, self._nodes_without(gone, self.nodes)) >= size.workers

    def _reserve(self, job: Waiting, size: Size) -> _Reservation:
        """Reserve room and quotas for the job: its latest start, and the room that it leaves to others then."""
        used = self._used.after(self._passing(job))
        used.add(job.owner, job.project, size)
        limit, room = self._latest_start(job, size)
        others = [node for node in self.nodes if not num_placeable(job.shape, [node])]
        own = [node for node in self.nodes if num_placeable(job.shape, [node])]
        left = self._nodes_without(set(), [*others, *own])  # its own nodes last, which others may be on or not
        of_others, of_own = left[: len(others)], left[len(others) :]
        asks_for_nodes = bool(others and (job.shape.accelerator or job.shape.memory_gb))
        if not asks_for_nodes and not (size.fits(self._free) and self._is_split(job, size)):
            return _Reservation(job, limit, _spare(room, size), of_own, used)
        # Sums do not tell what is spare: a job that took some could keep the rest fragmented. Nodes that are of no use
        # to the job may be taken, but for a bounded time if Ray may put the workers on its own nodes as well.
        is_early = self.now < job.queued_at + self.rules.backfill_s
        return _Reservation(job, limit, total(of_others) if is_early else Size(), of_own, used)

    def _latest_start(self, job: Waiting, size: Size) -> tuple[float, Size]:
        """Return by when the job has room, and the room that is free then: as much as now if nothing tells."""
        room = self._unclaimed
        stay = [each for each in self.running if each.job_id not in self._gone]
        ends = [(max(each.ends_by, self.now), each.size) for each in stay]
        ends += [(_ends_by(each.job, each.trials, began_at=self.now), each.size) for each in self.start]
        for ends_by, freed in sorted(ends, key=lambda each: each[0]):
            if ends_by == math.inf:
                break
            room += freed
            if size.fits(room):
                return ends_by, room
        return job.queued_at + self.rules.backfill_s, self._unclaimed


def _is_behind(job: Waiting | Running, first: Waiting) -> bool:
    """Return whether the job has a lower priority than the first, or the same and is younger."""
    return (-job.priority.rank, job.job_id) > (-first.priority.rank, first.job_id)


def _spare(room: Size, size: Size) -> Size:
    """Return what a job leaves of the room, at least none of each."""
    left = room - size
    return Size(max(0.0, left.cpus), max(0.0, left.gpus), memory_gb=max(0.0, left.memory_gb))


def sized(shape: Shape, nodes: Sequence[Node], quotas: Quotas, *, owner: str, project: str) -> tuple[Size, int, str]:
    """Return a job's size, its number of concurrent training runs, and why it can never be placed ("" if it can).

    As many training runs go side by side as the cluster and the quotas can ever have room for. A sweep stays within its
    `at_once`.
    """
    found = conflicts(shape, nodes)
    if not found:  # with as many workers as the cluster holds
        shape = next(
            each for each in (shape, *shape.smaller) if not conflicts(each._replace(least=each.num_workers), nodes)
        )
        found = quota_conflicts(shape, quotas, owner=owner, project=project)
    if found:
        return shape.one, 1, found[0].message
    most = min(shape.at_once or shape.trials, shape.trials, num_placeable(shape, nodes) // shape.one.workers)
    for number in _at_a_time(shape, most):
        if not quota_conflicts(_side_by_side(shape, number), quotas, owner=owner, project=project):
            return shape.one * number, number, ""
    return shape.one, 1, ""


def _at_a_time(shape: Shape, most: int) -> Sequence[int]:
    """Return how many of the job's training runs can go side by side, from at most `most` down to 1.

    Arms go in rounds of about the same number, so that no room is taken in vain.
    """
    numbers = range(most, 0, -1)
    if shape.at_once:
        return numbers
    return sorted({math.ceil(shape.trials / math.ceil(shape.trials / num)) for num in numbers}, reverse=True)


def _side_by_side(shape: Shape, number: int) -> Shape:
    """Return that many of the job's training runs as a single one, with the lanes of all."""
    return shape._replace(lanes=shape.lanes * number, trials=1)


def with_more_trials(shape: Shape, trials: int) -> Shape | None:
    """Return the job with enough more training runs at a time than `trials` that they save a round; None: none do."""
    rounds = math.ceil(shape.trials / trials)
    numbers = _at_a_time(shape, min(shape.at_once or shape.trials, shape.trials))
    saving = [num for num in numbers if math.ceil(shape.trials / num) < rounds]
    return _side_by_side(shape, saving[-1])._replace(least=shape.num_workers) if saving else None


def fits_beside(job: Waiting, size: Size, running: Sequence[Running], nodes: Sequence[Node], quotas: Quotas) -> bool:
    """Return whether the job still fits beside the running jobs, as another replica may have started some."""
    free = total(nodes) - sum((each.size for each in running), Size())
    left = left_beside((each.size for each in running), nodes)
    return (
        size.fits(free)
        and num_placeable(job.shape, left) >= size.workers
        and Used(quotas, running).full(job.owner, job.project, size) is None
    )


def ends_by(seconds: float | None, shape: Shape, trials: int, *, began_at: float) -> float:
    """Return the time by which a job begun at `began_at`, with `trials` at a time, has ended; infinity if unknown."""
    if seconds is None:
        return math.inf
    return began_at + math.ceil(shape.trials / trials) * (seconds + _START_S)


def _ends_by(job: Waiting, trials: int, *, began_at: float) -> float:
    return ends_by(job.seconds, job.shape, trials, began_at=began_at)
