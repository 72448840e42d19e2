"""The capacity of a cluster. Pure arithmetic over its nodes, as placement groups see them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from service.job.parts import Workers
from service.job.problems import Problem
from service.job.spec import JobSpec


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine's logical resources."""

    cpus: float
    gpus: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The resources that a job takes while it runs."""

    cpus: float
    gpus: float


def num_placeable(workers: Workers, nodes: Sequence[Node]) -> int:
    """Return how many such workers the empty cluster holds; those that are placed together do not span nodes."""
    return sum(_on_node(workers, node) for node in nodes)


def _on_node(workers: Workers, node: Node) -> int:
    size = workers.placed_together
    most = math.floor(node.cpus / (size * workers.cpus))
    if workers.gpus:
        most = min(most, math.floor(node.gpus / (size * workers.gpus)))
    return size * most


def conflicts(spec: JobSpec, nodes: Sequence[Node]) -> list[Problem]:
    """Return why the cluster can never place the job; nothing if it can."""
    workers, problems = spec.workers, []
    size = workers.placed_together
    asker = "a worker asks" if size == 1 else f"each of {size} workers that share a node asks"
    for name, wanted in (("cpus", workers.cpus), ("gpus", workers.gpus)):
        most = max((getattr(node, name) for node in nodes), default=0.0)
        if size * wanted > most:
            message = f"{asker} for {wanted:g} {name}; allowed: 0 to {most / size:g}, by the most that a node has"
            problems.append(Problem(pointer=f"/workers/{name}", message=message, value=wanted))
    placeable = num_placeable(workers, nodes)
    if not problems and spec.num_workers > placeable:
        without_gpus = num_placeable(workers.model_copy(update={"gpus": 0.0}), nodes)
        limit = "gpus" if placeable < without_gpus else "count"
        value = workers.gpus if limit == "gpus" else workers.count
        lanes = f" in {spec.lanes.count} lanes" if spec.lanes.count > 1 else ""
        message = (
            f"the job asks for {spec.num_workers} workers{lanes} of {workers.cpus:g} CPUs and {workers.gpus:g} GPUs; "
            f"allowed: 1 to {placeable}, all that the cluster holds"
        )
        problems.append(Problem(pointer=f"/workers/{limit}", message=message, value=value))
    return problems


def demand(spec: JobSpec, nodes: Sequence[Node]) -> Demand:
    """Return what the job takes: all trials side by side if the cluster has as much, else one at a time."""
    workers = spec.workers
    one = Demand(cpus=spec.num_workers * workers.cpus, gpus=spec.num_workers * workers.gpus)
    num_trials = len(spec.arms) * len(spec.seeds)
    together = Demand(cpus=num_trials * one.cpus, gpus=num_trials * one.gpus)
    has_all = together.cpus <= sum(node.cpus for node in nodes) and together.gpus <= sum(node.gpus for node in nodes)
    return together if has_all else one


def has_room(spec: JobSpec, running: Sequence[JobSpec], nodes: Sequence[Node]) -> bool:
    """Return whether the job fits beside those that run."""
    asked, taken = demand(spec, nodes), [demand(other, nodes) for other in running]
    free_cpus = sum(node.cpus for node in nodes) - sum(other.cpus for other in taken)
    free_gpus = sum(node.gpus for node in nodes) - sum(other.gpus for other in taken)
    return asked.cpus <= free_cpus and asked.gpus <= free_gpus
