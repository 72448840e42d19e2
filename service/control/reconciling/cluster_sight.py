"""The cluster as this process sees it now, and has seen it within the last hour."""

import math
from collections.abc import Sequence

from service.control.queue.capacity import Node, Shape, conflicts
from service.control.ray_cluster.clusters import Cluster, RayApi
from service.control.telemetry import Telemetry
from service.errors import Unavailable
from service.job.problems import Problem
from service.job.spec import JobSpec
from service.settings import ClusterNodes, Settings

_SEEN_S = 3600.0  # a node away for less may come back, so jobs that need it are not refused
_MOST_SEEN = 50  # clusters: one whose nodes come and go has many


class ClusterSight:
    """A view of the cluster that tells what it can hold. Mutable."""

    def __init__(self, cluster: Cluster, settings: Settings, telemetry: Telemetry) -> None:
        self._cluster, self._telemetry = cluster, telemetry
        self._largest = tuple(_node(each) for each in settings.cluster_nodes for _ in range(each.count))
        #: What jobs are judged by; None: the cluster is unknown.
        self.nodes: Sequence[Node] | None = self._largest or cluster.declared()
        self._seen: dict[tuple[Node, ...], float] = {}  # and when: the cluster within the last hour, now last

    def look(self, *, now: float) -> tuple[RayApi, Sequence[Node]]:
        """Return Ray and its nodes. Jobs are judged by these nodes from now on. Raises Unavailable."""
        try:
            ray = self._cluster.connect()
            there = ray.nodes()  # the first that is asked of somebody else's Ray: it tells whether that one is up
        except Unavailable:
            self._telemetry.cluster_up.set(0)
            raise
        nodes = self._largest or there
        self._see(nodes, now=now)
        self._telemetry.note_cluster(nodes)
        return ray, nodes

    def _see(self, nodes: tuple[Node, ...], *, now: float) -> None:
        """Record that the cluster has `nodes`, and forget records older than an hour."""
        seen = [(each, at) for each, at in self._seen.items() if each != nodes and abs(now - at) < _SEEN_S]
        self.nodes, self._seen = nodes, dict([*seen, (nodes, now)][-_MOST_SEEN:])

    def conflicts(self, spec: JobSpec) -> list[Problem]:
        """Return why the cluster can never place the job, even as seen within the last hour.

        Empty while the cluster is unknown, or no node for training has joined.
        """
        if self.nodes is None or not any(node.cpus or node.gpus for node in self.nodes):
            return []
        shape = Shape.of(spec)
        found = [conflicts(shape, nodes) for nodes in self._seen or (tuple(self.nodes),)]
        return found[0] if all(found) else []

    def is_too_small(self, shape: Shape) -> bool:
        """Return whether the cluster can no longer hold an attempt's workers, after it has lost a machine."""
        return self.nodes is not None and bool(conflicts(shape, self.nodes))


def _node(declared: ClusterNodes) -> Node:
    memory_gb = math.inf if declared.memory_gb is None else declared.memory_gb
    return Node(cpus=declared.cpus, gpus=declared.gpus, memory_gb=memory_gb, accelerator=declared.accelerator)
