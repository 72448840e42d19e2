"""A fake in-memory cluster, and a clock turned by hand, for tests of the reconciler."""

import sys

from service.control.queue.capacity import Node
from service.control.ray_cluster.ray_jobs import Machine, RayStatus
from service.errors import Unavailable


class FakeRay:
    """A cluster in memory that keeps the rules of Ray's Jobs API; while it has a `failure`, nothing answers."""

    def __init__(self, *, cpus=2):
        self.jobs, self.environments, self.entrypoints, self.stopped = {}, {}, {}, []
        self.packages, self.package_of = {}, {}
        self.cpus, self.output, self.message = cpus, "", ""
        self.placed, self.num_looks = (), 0
        self.failure = None

    def _reach(self):
        if self.failure:
            raise Unavailable(self.failure)

    def has_package(self, name):
        self._reach()
        return name in self.packages

    def upload(self, name, content):
        self._reach()
        self.packages[name] = content

    def submit(self, submission_id, *, entrypoint, env_vars, package=None):
        self._reach()
        self.package_of[submission_id] = package
        self.jobs.setdefault(submission_id, RayStatus.RUNNING)
        self.environments[submission_id], self.entrypoints[submission_id] = env_vars, entrypoint

    def status(self, submission_id):
        self._reach()
        return self.jobs.get(submission_id, RayStatus.MISSING)

    def statuses(self):
        self._reach()
        return dict(self.jobs)

    def stop(self, submission_id):
        self._reach()
        self.stopped.append(submission_id)
        self.jobs[submission_id] = RayStatus.STOPPED

    def reason(self, submission_id):
        self._reach()
        return self.message

    def delete(self, submission_id):
        self._reach()
        del self.jobs[submission_id]

    def log(self, submission_id, *, lines=None):
        self._reach()
        printed = self.output.encode().splitlines(keepends=True)
        yield from printed[-lines:] if lines else printed

    def nodes(self):
        self._reach()
        return (Node(cpus=self.cpus),)

    def version(self):
        self._reach()
        return "2.60.0"

    def machines(self):
        self._reach()
        return (
            Machine("n1", "one", "10.0.0.1", is_head=True, cpus=self.cpus, gpus=0.0, memory_gb=16.0, accelerator="T4"),
        )

    def workers(self):
        self._reach()
        self.num_looks += 1
        return self.placed


class FakeCluster:
    """The way to a Ray that somebody else runs: only its answers tell whether it is up."""

    python = sys.executable

    def __init__(self, ray):
        self.ray, self.idle, self.spent, self.closed = ray, [], False, False
        self.nodes, self.num_connected, self.num_adopted = None, 0, 0

    def connect(self):
        self.num_connected += 1
        return self.ray

    def running(self):
        return self.ray

    def adopt(self):
        self.num_adopted += 1
        return False

    def declared(self):
        return self.nodes

    def is_spent(self, idle_s):
        self.idle.append(idle_s)
        return self.spent

    def close(self):
        self.closed, self.ray.failure = True, "Ray is stopped"


class Clock:
    """Seconds since the epoch, turned by hand; every look takes a millisecond, so that jobs have an order."""

    now = 1_800_000_000.0

    def __call__(self):
        self.now += 1e-3
        return self.now
