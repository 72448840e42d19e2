"""The cluster's nodes and the workers on them, according to Ray. Nothing is stored."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from service.control.access.rules import Principal, visible_project
from service.control.queries import WorkerSize
from service.control.ray_cluster.clusters import RayApi
from service.control.ray_cluster.ray_jobs import Machine, Workers
from service.control.store import Store
from service.errors import Unavailable
from service.wire.cluster import ClusterView, NodeView, Placement

_KEPT_S = 2.0  # Ray is asked no more often, however many clients ask
_PATIENCE_S = 0.5  # with another's question to Ray
_NOT_STARTED = "Ray does not run: the next job starts it"


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """Ray's answer."""

    version: str
    machines: Sequence[Machine]
    workers: Sequence[Workers]
    sizes: Mapping[str, WorkerSize]


class Occupancy:
    """The nodes and their workers, cached. `ray` returns Ray if it runs, without starting it."""

    def __init__(
        self, store: Store, ray: Callable[[], RayApi | None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._ray, self._clock = store, ray, clock
        self._lock = threading.Lock()
        self._asked_at = -_KEPT_S
        self._found: _Answer | str = "Ray has not answered yet"  # text: why there is none

    def view(self, *, by: Principal) -> ClusterView:
        """Return the cluster as `by` may see it. If it does not answer, the view says so, and nothing is raised."""
        found = self._newest()
        answer = found if isinstance(found, _Answer) else None
        return ClusterView(
            embedded=not self._store.settings.ray_address,
            reachable=answer is not None,
            reason=found if isinstance(found, str) else "",
            version=version("wiretune"),
            ray_version=answer and answer.version,
            nodes=() if answer is None else self._nodes(answer, by=by),
        )

    def _newest(self) -> _Answer | str:
        """Return Ray's answer, or the last one while another thread waits for the next."""
        if not self._lock.acquire(timeout=_PATIENCE_S):
            return self._found
        try:
            if self._clock() - self._asked_at >= _KEPT_S:
                self._found = self._ask()
                self._asked_at = self._clock()
            return self._found
        finally:
            self._lock.release()

    def _ask(self) -> _Answer | str:
        try:
            if (ray := self._ray()) is None:
                return _NOT_STARTED
            workers = ray.workers()
            sizes = self._store.worker_sizes({each.job_id for each in workers})
            return _Answer(version=ray.version(), machines=ray.machines(), workers=workers, sizes=sizes)
        except Unavailable as error:
            return str(error)

    def _nodes(self, found: _Answer, *, by: Principal) -> tuple[NodeView, ...]:
        project = visible_project(by)
        placed = defaultdict(list)
        for workers in found.workers:
            placed[workers.node_id].append(_placement(workers, found.sizes.get(workers.job_id), project=project))
        return tuple(NodeView(**machine._asdict(), placements=tuple(placed[machine.id])) for machine in found.machines)


def _placement(workers: Workers, size: WorkerSize | None, *, project: str | None) -> Placement:
    """Return the workers as a member of `project` may see them. Workers of other services' jobs have no size."""
    if size is None:
        return Placement(job=None, name=None, workers=workers.num, cpus=0.0, gpus=0.0)
    is_seen = project in (None, size.project)
    return Placement(
        job=workers.job_id if is_seen else None,
        name=size.name if is_seen else None,
        workers=workers.num,
        cpus=workers.num * size.cpus,
        gpus=workers.num * size.gpus,
    )
