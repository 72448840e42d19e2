"""Run thousands of jobs through the queue's decisions, in simulated time: shares, waits, starvation, and their cost.

python benchmarks/queue_shares.py            # 10,000 jobs: seconds of processor
python benchmarks/queue_shares.py --turns    # a turn of the real reconciler with 0, 1,000 and 10,000 waiting jobs
"""

import argparse
import heapq
import itertools
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import update

from service.control.access.rules import Principal
from service.control.models import JobRow
from service.control.queue.capacity import Node, Shape, Size, total
from service.control.queue.order import HALF_LIFE_S
from service.control.queue.plan import plan
from service.control.queue.queued import Rules, Running, Waiting
from service.control.ray_cluster.clusters import Cluster, RayApi
from service.control.ray_cluster.ray_jobs import RayStatus
from service.control.reconciling.assembly import assemble
from service.control.store import Store
from service.job.priority import Priority
from service.job.spec import JobSpec
from service.settings import Settings
from service.wire.access import Role
from service.wire.queue import QuotaKind, QuotaLimits

NODES = (Node(cpus=32), Node(cpus=32))
WEIGHTS = {"vision": 4.0, "speech": 2.0, "text": 1.0, "audio": 1.0}
SIZES, LONGEST_S = (1, 1, 2, 2, 4, 8), 3600.0
RULES = Rules(aging_s=12 * 3600.0, backfill_s=1800.0, min_run_s=300.0)
QUOTAS = {(QuotaKind.PROJECT, name): QuotaLimits(weight=weight) for name, weight in WEIGHTS.items()}


@dataclass
class Outcome:
    """The outcome of the jobs. Shares are of all the CPU seconds while every project had jobs waiting."""

    shares: dict[str, float]
    used: float
    longest_wait_s: float
    waits: dict[str, float]
    num_preempted: int
    num_ended: int


class Simulation:
    """A cluster on which every project keeps `backlog` jobs waiting, of which some are of another priority."""

    def __init__(self, num_jobs: int, *, backlog: int, priorities: tuple[Priority, ...], seed: int = 0) -> None:
        self._random, self._priorities = random.Random(seed), priorities
        self._num_jobs, self._num_made, self._ids = num_jobs, 0, itertools.count()
        self.waiting: dict[str, Waiting] = {}
        self.running: dict[str, tuple[Running, Waiting, float]] = {}
        self.recent: dict[str, tuple[float, float]] = {}  # CPU seconds, as of when
        self.left_s: dict[str, float] = {}
        self.taken: dict[str, float] = defaultdict(float)
        self.waits: dict[str, float] = defaultdict(float)
        self.ends: list[tuple[float, str]] = []
        self.num_preempted = self.num_ended = 0
        for project in WEIGHTS:
            for _ in range(backlog):
                self._submit(project, 0.0)

    def _submit(self, project: str, now: float) -> None:
        job_id = f"job-{next(self._ids):06}"
        seconds = self._random.choice([None, LONGEST_S])
        size = self._random.choice(SIZES)
        shape = Shape(size, 1, 1.0, 0.0, 1, 1, least=size)
        self.waiting[job_id] = Waiting(
            job_id=job_id, owner=project, project=project, priority=self._random.choice(self._priorities),
            shape=shape, queued_at=now, seconds=seconds,
        )  # fmt: skip
        self.left_s[job_id] = self._random.uniform(60.0, LONGEST_S)
        self._num_made += 1

    def _decide(self, now: float) -> None:
        rate = 0.6931 / HALF_LIFE_S
        recent = {
            name: Size(cpu_s * rate * 0.5 ** ((now - at) / HALF_LIFE_S)) for name, (cpu_s, at) in self.recent.items()
        }
        running = [job for job, _, _ in self.running.values()]
        decided = plan(tuple(self.waiting.values()), running, NODES, quotas=QUOTAS, recent=recent, rules=RULES, now=now)
        for victim, _ in decided.pause:
            self._pause(victim, now)
        for job, size, _ in decided.start:
            self._start(job, size, now)

    def _start(self, job: Waiting, size: Size, now: float) -> None:
        del self.waiting[job.job_id]
        waited = now - job.queued_at
        self.waits[job.priority] = max(self.waits[job.priority], waited)
        ends_by = now + LONGEST_S if job.seconds else float("inf")
        running = Running(
            job_id=job.job_id, owner=job.owner, project=job.project, priority=job.priority, size=size, began_at=now,
            ends_by=ends_by,
        )  # fmt: skip
        self.running[job.job_id] = running, job, waited
        heapq.heappush(self.ends, (now + self.left_s[job.job_id], job.job_id))
        if self._num_made < self._num_jobs:
            self._submit(job.project, now)

    def _leave(self, job_id: str, now: float) -> tuple[Waiting, float]:
        running, job, waited = self.running.pop(job_id)
        took = now - running.began_at
        cpu_s, at = self.recent.get(running.project, (0.0, now))
        self.recent[running.project] = (cpu_s * 0.5 ** ((now - at) / HALF_LIFE_S) + running.size.cpus * took, now)
        if self._num_made < self._num_jobs:  # later not every project has jobs that wait
            self.taken[running.project] += running.size.cpus * took
        self.left_s[job_id] -= took
        return job, waited

    def _pause(self, job_id: str, now: float) -> None:
        job, waited = self._leave(job_id, now)
        self.ends = [each for each in self.ends if each[1] != job_id]
        heapq.heapify(self.ends)
        again = {name: getattr(job, name) for name in Waiting.__slots__} | {"queued_at": now - waited}
        self.waiting[job_id] = Waiting(**again)
        self.num_preempted += 1

    def run(self) -> Outcome:
        """Run until every job has ended."""
        now = saturated_s = 0.0
        while self.waiting or self.running:
            self._decide(now)
            assert self.ends, "jobs wait, and nothing runs"
            now, ended = heapq.heappop(self.ends)
            self._leave(ended, now)
            self.num_ended += 1
            saturated_s = now if self._num_made < self._num_jobs else saturated_s
        whole = sum(self.taken.values())
        return Outcome(
            shares={name: taken / whole for name, taken in sorted(self.taken.items())},
            used=whole / (saturated_s * total(NODES).cpus),
            longest_wait_s=max(self.waits.values()),
            waits=dict(self.waits),
            num_preempted=self.num_preempted,
            num_ended=self.num_ended,
        )


def due() -> dict[str, float]:
    """Return the share that each project's weight comes to."""
    return {name: weight / sum(WEIGHTS.values()) for name, weight in sorted(WEIGHTS.items())}


# -- the reconciler's turn ---------------------------------------------------------------------------------


class FullCluster:
    """A Ray of so many cores that never ends a job."""

    python = sys.executable

    def __init__(self, cpus: int) -> None:
        self._nodes = (Node(cpus=cpus),)

    def connect(self) -> "FullCluster":
        return self

    def running(self) -> "FullCluster":
        return self

    def adopt(self) -> bool:
        return False

    def declared(self) -> tuple[Node, ...]:
        return self._nodes

    def nodes(self) -> tuple[Node, ...]:
        return self._nodes

    def submit(self, *_: object, **__: object) -> None:
        return None

    def status(self, submission_id: str) -> RayStatus:
        return RayStatus.RUNNING

    def is_spent(self, idle_s: float) -> bool:
        return False

    def close(self) -> None:
        return None


def turn_ms(num_waiting: int, num_turns: int = 20) -> tuple[float, float]:
    """Return the processor's milliseconds of the first turn, and of one of those that follow, on SQLite.

    Turns are a second apart: with a long queue that does not change, one in five decides, as in the service.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Settings(state_dir=Path(folder)))
        cluster: Cluster | RayApi = FullCluster(2)  # type: ignore[assignment]
        reconciler = assemble(store, store.settings, api_url="http://x", cluster=cluster).reconciler  # type: ignore[arg-type]
        spec = JobSpec.model_validate({"workload": {"kind": "digits-mlp"}, "budget": {"steps": 1}})
        for number in range(num_waiting + 1 if num_waiting else 0):
            store.add_job(spec, by=Principal(name=f"o{number % 7}", role=Role.ADMIN, project=f"p{number % 5}"))
        with store._db.engine.begin() as connection:  # as after the rounds that told each job, some in each
            connection.execute(update(JobRow).values(reason="waits for room on the cluster"))
        began = time.process_time()
        reconciler.tick(time.time())
        first = time.process_time() - began
        began = time.process_time()
        for number in range(num_turns):
            reconciler.tick(time.time() + number)  # a second apart
        later = (time.process_time() - began) / num_turns
        store.close()
    return 1000 * first, 1000 * later


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", action="store_true", help="measure the reconciler's turn instead")
    parser.add_argument("--jobs", type=int, default=10_000)
    given = parser.parse_args()
    if given.turns:
        for num_waiting in (0, 1_000, 10_000):
            first, later = turn_ms(num_waiting)
            print(f"{num_waiting:6} waiting: first turn {first:.0f} ms, later turns {later:.1f} ms of processor")
        return
    mixed = (*[Priority.NORMAL] * 6, Priority.LOW, Priority.LOW, Priority.HIGH, Priority.URGENT)
    for name, priorities in (("one priority", (Priority.NORMAL,)), ("four priorities", mixed)):
        began = time.process_time()
        outcome = Simulation(given.jobs, backlog=40, priorities=priorities).run()
        print(f"{name}: {outcome.num_ended} jobs, {outcome.num_preempted} preemptions, {outcome.used:.1%} of the CPUs")
        for project, wanted in due().items():
            got = outcome.shares[project]
            print(f"  {project}: {got:.1%} of what was used, by weight {wanted:.1%} ({got / wanted - 1:+.1%})")
        waits = Counter({each: wait / 3600 for each, wait in outcome.waits.items()})
        print("  longest waits: " + ", ".join(f"{each} {hours:.1f} h" for each, hours in sorted(waits.items())))
        print(f"  {time.process_time() - began:.0f} s of processor")


if __name__ == "__main__":
    main()
