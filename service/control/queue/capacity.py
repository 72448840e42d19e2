"""The capacity of a cluster: pure arithmetic over its nodes, as placement groups see them."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from search.sweep.spec import SweepConfig
from service.job.parts import Lanes, Workers
from service.job.problems import Problem
from service.job.spec import JobSpec

#: Ray counts in ten-thousandths: a worker that asks for less takes one. Sums of floats are off by less.
_LEAST = 1e-4
_TOLERANCE = 1e-6
_WAY_OUT = "; with fewer `workers.cpus` more of them fit"


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine's logical resources."""

    cpus: float
    gpus: float = 0.0
    memory_gb: float = math.inf  # infinity: not known
    accelerator: str | None = None  # the kind of its GPUs in Ray's words; empty: it has none; None: not known
    shares: tuple[float, ...] = ()  # the free share of each GPU that already has workers


@dataclass(frozen=True, slots=True)
class Size:
    """The resources that a running job takes, or that a room has."""

    cpus: float = 0.0
    gpus: float = 0.0
    workers: int = 0
    memory_gb: float = 0.0
    accelerator: str = ""  # of a single job, which needs nodes of this kind; sums have none

    def __add__(self, other: "Size") -> "Size":
        memory_gb = self.memory_gb + other.memory_gb
        return Size(self.cpus + other.cpus, self.gpus + other.gpus, self.workers + other.workers, memory_gb)

    def __sub__(self, other: "Size") -> "Size":
        memory_gb = self.memory_gb - other.memory_gb
        return Size(self.cpus - other.cpus, self.gpus - other.gpus, self.workers - other.workers, memory_gb)

    def __mul__(self, factor: int) -> "Size":
        memory_gb = self.memory_gb * factor
        return Size(self.cpus * factor, self.gpus * factor, self.workers * factor, memory_gb, self.accelerator)

    def fits(self, room: "Size") -> bool:
        """Return whether `room` has enough CPUs, GPUs and memory, on whatever nodes."""
        return (
            self.cpus <= room.cpus + _TOLERANCE
            and self.gpus <= room.gpus + _TOLERANCE
            and self.memory_gb <= room.memory_gb + _TOLERANCE
        )


class Shape(NamedTuple):
    """The parts of a job that determine its placement. `cpus`, `gpus` and `memory_gb` are per worker."""

    num_workers: int  # per lane
    placed_together: int
    cpus: float
    gpus: float
    lanes: int
    trials: int
    at_once: int | None = None  # trials at a time at most; None: all, or fewer in even rounds
    least: int = 0  # the fewest workers per lane that it can run with; 0: all
    memory_gb: float = 0.0
    accelerator: str = ""  # the kind of node that its workers need; empty: any

    @classmethod
    def of(cls, spec: JobSpec) -> "Shape":
        """Return the job's shape."""
        at_once = spec.sweep_config.at_once if spec.params else None
        return cls._of(spec.workers, spec.lanes, spec.num_trials, at_once, _least(spec))

    @classmethod
    def of_json(cls, spec: Mapping[str, Any]) -> "Shape":
        """Return a stored job's shape without reading the rest, which takes a hundred times as long."""
        workers = Workers.model_validate(spec.get("workers", {}))
        lanes = Lanes.model_validate(spec.get("lanes", {}))
        trials = len(spec.get("arms", [None])) * len(spec.get("seeds", [0]))
        least = workers.count if workers.min is None else _least(JobSpec.stored(spec))
        if not spec.get("params"):
            return cls._of(workers, lanes, trials, None, least)
        sweep = SweepConfig.model_validate(spec.get("sweep") or {})
        return cls._of(workers, lanes, trials + sweep.samples, sweep.at_once, least)

    @classmethod
    def _of(cls, workers: Workers, lanes: Lanes, trials: int, at_once: int | None, least: int) -> "Shape":
        return cls(
            num_workers=workers.count,
            placed_together=workers.placed_together,
            cpus=max(_LEAST, workers.cpus),  # a job of an earlier release may ask for so little that no count fits
            gpus=max(_LEAST, workers.gpus) if workers.gpus else 0.0,
            lanes=lanes.count,
            trials=trials,
            at_once=at_once,
            least=least,
            memory_gb=workers.memory_gb or 0.0,
            accelerator=workers.accelerator or "",
        )

    def without_finished(self, finished: int) -> "Shape":
        """Return the job without that many finished trials, but with one at least."""
        return self._replace(trials=max(1, self.trials - finished))

    @property
    def smaller(self) -> Iterator["Shape"]:
        """The same job with fewer workers, down to the fewest that it can run with, in descending order."""
        for num in range(
            self.num_workers - self.placed_together, (self.least or self.num_workers) - 1, -self.placed_together
        ):
            yield self._replace(num_workers=num)

    @property
    def reduced(self) -> Iterator["Shape"]:
        """The job in reduced shapes: one trial at a time, with all workers or with fewer."""
        if (self.least or self.num_workers) < self.num_workers:
            yield self
            yield from self.smaller

    def with_one_more(self, size: Size, trials: int) -> "Shape | None":
        """Return the job with one more worker, or node's worth of them, per lane than at `size`; None if it has all.

        At that size, `trials` go side by side.
        """
        num = size.workers // (self.lanes * trials) + self.placed_together
        if num > self.num_workers or trials > 1:
            return None
        return self._replace(num_workers=num, least=num)

    @property
    def one(self) -> Size:
        """The size of one training run, over all lanes."""
        num = self.num_workers * self.lanes
        return Size(num * self.cpus, num * self.gpus, num, num * self.memory_gb, self.accelerator)

    def sized(self, size: Size) -> Size:
        """Return the size of a running attempt, with what only the job says: its memory and kind of nodes."""
        return replace(size, memory_gb=size.workers * self.memory_gb, accelerator=self.accelerator)


def _least(spec: JobSpec) -> int:
    """Return the fewest workers with which an attempt can run: all, if a worker's state cannot be taken over."""
    return spec.workers.count if spec.apart_under else spec.workers.least


#: The shape assumed for a job that this release cannot read.
NO_SHAPE = Shape(num_workers=1, placed_together=1, cpus=1.0, gpus=0.0, lanes=1, trials=1)


def total(nodes: Sequence[Node]) -> Size:
    """Return the resources of the empty cluster."""
    return Size(
        sum(node.cpus for node in nodes),
        sum(node.gpus for node in nodes),
        memory_gb=sum(node.memory_gb for node in nodes),
    )


def num_placeable(shape: Shape, nodes: Sequence[Node]) -> int:
    """Return how many such workers the empty cluster holds. Workers placed together do not span nodes."""
    return sum(_on_node(shape, node) for node in nodes)


def _on_node(shape: Shape, node: Node) -> int:
    if not _has_kind(shape, node):
        return 0
    size = shape.placed_together
    by_memory = node.memory_gb / (size * shape.memory_gb) if shape.memory_gb else math.inf
    return size * math.floor(min(node.cpus / (size * shape.cpus), _by_gpus(shape, node), by_memory) + _TOLERANCE)


def _has_kind(shape: Shape, node: Node) -> bool:
    return not shape.accelerator or node.accelerator in (None, shape.accelerator)


def _by_gpus(shape: Shape, node: Node) -> float:
    """Return how many groups of workers that are placed together the node's GPUs can hold.

    As in Ray, a share lies on one GPU: two GPUs hold two workers of 0.6 each, not three.
    """
    wanted, whole = shape.placed_together * shape.gpus, node.gpus - sum(node.shares)
    if not wanted:
        return math.inf
    if wanted < 1 - _TOLERANCE:
        num_whole = max(0, math.floor(whole + _TOLERANCE))
        rest = max(0.0, whole - num_whole)  # of a node that was given a part of a GPU
        in_part = sum(_num_within(free, wanted) for free in (*node.shares, rest))
        return num_whole * _num_within(1.0, wanted) + in_part
    is_even = shape.gpus >= 1 or _num_within(1.0, shape.gpus) * shape.gpus > 1 - _TOLERANCE
    return whole / wanted if is_even else 0.0


def _num_within(free: float, share: float) -> int:
    return math.floor(free / share + _TOLERANCE)


def left_beside(sizes: Iterable[Size], nodes: Sequence[Node]) -> Sequence[Node]:
    """Return the nodes' free room with workers packed tightly: largest first, each on the first node with room.

    This is an estimate: Ray places them, and may spread them further.
    """
    packed = [(_worker_of(size), size.workers) for size in sizes if size.workers]
    for worker, num in sorted(packed, key=_choosiness, reverse=True):
        nodes = left_by(worker, num, nodes)
    return nodes


def _choosiness(packed: tuple[Shape, int]) -> tuple[float, ...]:
    worker, num = packed
    return bool(worker.accelerator), worker.gpus, worker.cpus, worker.memory_gb, num


def left_by(shape: Shape, num_workers: int, nodes: Sequence[Node]) -> Sequence[Node]:
    """Return the nodes' free room after placing such workers, each on the first node with room."""
    left = list(nodes)
    for index, node in enumerate(nodes):
        if not num_workers:
            break
        num = max(0, min(num_workers, _on_node(shape, node)))
        shares = _shares_left(shape, num, node)
        left[index] = replace(
            node,
            cpus=node.cpus - num * shape.cpus,
            gpus=node.gpus - num * shape.gpus,
            memory_gb=node.memory_gb - num * shape.memory_gb,
            shares=shares,
        )
        num_workers -= num
    return left


def _shares_left(shape: Shape, num_workers: int, node: Node) -> tuple[float, ...]:
    """Return the free share of each shared GPU after placing such workers, each on the fullest GPU with room."""
    share, num = shape.placed_together * shape.gpus, num_workers // shape.placed_together
    if not 0 < share < 1 - _TOLERANCE:
        return node.shares
    left = []
    fresh = math.ceil(num / _num_within(1.0, share))
    for free in (*sorted(node.shares), *[1.0] * fresh):
        here = min(num, _num_within(free, share))
        num -= here
        if here or free < 1.0:
            left.append(free - here * share)
    return tuple(left)


def _worker_of(size: Size) -> Shape:
    return Shape(
        num_workers=1,
        placed_together=1,
        cpus=max(_LEAST, size.cpus / size.workers),
        gpus=size.gpus / size.workers,
        lanes=1,
        trials=1,
        memory_gb=size.memory_gb / size.workers,
        accelerator=size.accelerator,
    )


def conflicts(shape: Shape, nodes: Sequence[Node]) -> list[Problem]:
    """Return why the cluster can never place the job; empty if it can, at least with the fewest workers."""
    return [] if any(not _conflicts(fewer, nodes) for fewer in shape.smaller) else _conflicts(shape, nodes)


def _conflicts(shape: Shape, nodes: Sequence[Node]) -> list[Problem]:
    of_kind = [node for node in nodes if _has_kind(shape, node)]
    if nodes and not of_kind:
        kinds = ", ".join(sorted({f"`{node.accelerator}`" for node in nodes if node.accelerator})) or "none"
        message = f"no node has the accelerator {shape.accelerator!r}; the cluster has {kinds}"
        return [Problem(pointer="/workers/accelerator", message=message, value=shape.accelerator)]
    return _too_large(shape, of_kind) or _too_many(shape, of_kind)


def _too_large(shape: Shape, nodes: Sequence[Node]) -> list[Problem]:
    """Return which resources of a worker no node has enough of."""
    problems, size = [], shape.placed_together
    asker = "a worker asks" if size == 1 else f"each of {size} workers that share a node asks"
    for name, unit in (("cpus", "cpus"), ("gpus", "gpus"), ("memory_gb", "GB of memory")):
        wanted, most = getattr(shape, name), max((getattr(node, name) for node in nodes), default=0.0)
        if size * wanted > most + _TOLERANCE:
            message = f"{asker} for {wanted:g} {unit}; allowed: 0 to {most / size:g}, by the most that a node has"
            problems.append(Problem(pointer=f"/workers/{name}", message=message, value=wanted))
    return problems


def _too_many(shape: Shape, nodes: Sequence[Node]) -> list[Problem]:
    """Return which field to change if the nodes hold some such workers, but not all."""
    num_workers, placeable = shape.one.workers, num_placeable(shape, nodes)
    if num_workers <= placeable:
        return []
    limit = "count"
    value: float = shape.num_workers
    if placeable < num_placeable(shape._replace(gpus=0.0), nodes):
        limit, value = "gpus", shape.gpus
    elif placeable < num_placeable(shape._replace(memory_gb=0.0), nodes):
        limit, value = "memory_gb", shape.memory_gb
    lanes = f" in {shape.lanes} lanes" if shape.lanes > 1 else ""
    memory = f", {shape.memory_gb:g} GB" if shape.memory_gb else ""
    message = (
        f"the job asks for {num_workers} workers{lanes} of {shape.cpus:g} CPUs{memory} and {shape.gpus:g} GPUs; "
        f"allowed: 1 to {placeable}, all that the cluster holds{_WAY_OUT if limit == 'count' else ''}"
    )
    return [Problem(pointer=f"/workers/{limit}", message=message, value=value)]
