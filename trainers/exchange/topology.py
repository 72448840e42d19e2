"""The topology: ranks that share a node. Pure Python."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

#: Ranks by node: ascending in each, nodes in the order of their first ranks.
Nodes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Topology:
    """The ranks of each node. The first of a node leads it: it alone exchanges with other nodes."""

    nodes: Nodes

    @classmethod
    def stated(cls, num_workers: int, per_node: int | Literal["auto"]) -> "Topology":
        """Return nodes of `per_node` neighbouring ranks; `auto`: each is a node of its own until they are found.

        Raises ValueError if that leaves ranks over.
        """
        size = 1 if per_node == "auto" else per_node
        if size < 1 or num_workers % size:
            raise ValueError(f"workers per node must divide the {num_workers} workers, got {per_node}")
        return cls(tuple(tuple(range(first, first + size)) for first in range(0, num_workers, size)))

    @classmethod
    def by_host(cls, hosts: Sequence[Hashable]) -> "Topology":
        """Return nodes of the ranks that are on equal hosts, given by rank."""
        ranks: dict[Hashable, list[int]] = {}
        for rank, host in enumerate(hosts):
            ranks.setdefault(host, []).append(rank)
        return cls.of(ranks.values())

    @classmethod
    def of(cls, nodes: Iterable[Iterable[int]]) -> "Topology":
        """Return the given nodes; raises ValueError unless every rank from 0 on is in one of them, once."""
        ordered = tuple(sorted(tuple(sorted(node)) for node in nodes))
        ranks = sorted(rank for node in ordered for rank in node)
        if ranks != list(range(len(ranks))):
            raise ValueError(f"nodes must hold every rank once, got {[list(node) for node in ordered]}")
        return cls(ordered)

    @property
    def num_workers(self) -> int:
        return sum(map(len, self.nodes))

    @property
    def leaders(self) -> tuple[int, ...]:
        return tuple(node[0] for node in self.nodes)

    @property
    def share(self) -> float:
        """Return the factor by which gradients of ranks add up to what the mean over nodes makes their mean."""
        return len(self.nodes) / self.num_workers

    def node_of(self, rank: int) -> tuple[int, ...]:
        """Return the ranks of the node that `rank` is on."""
        return next(node for node in self.nodes if rank in node)
