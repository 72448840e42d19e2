"""The catalogue of methods that a job can choose: papers, knobs, compatible choices and traffic.

It is derived from where each fact is declared: the configurations, their checks, `trainers.traffic.cost` and
`service.catalog.papers`.
"""

import difflib
import math
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter

from service.catalog.combinations import PARTS, Combination, choosing, combinations, job, kinds_of, note_of
from service.catalog.papers import COMPOSED, Composed
from service.errors import NotFound
from service.job.spec import JobSpec
from service.wire.methods import MethodsView, MethodView, NeedsView, PaperView, RefusedView, TrafficView
from trainers.methods.blocks.jointspar.spec import JointSparConfig
from trainers.methods.exchange.auto.spec import AutoConfig, mean_traffic
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import contenders, num_iterates
from trainers.methods.replica_config import ReplicaConfig
from trainers.spec.knobs import Knob, knobs_of
from trainers.spec.ranges import first
from trainers.spec.sync import LocalUpdatesConfig
from trainers.spec.two_way import DriftingConfig
from trainers.spec.workloads import WorkloadConfig
from trainers.traffic import collectives, cost
from trainers.traffic.shapes import Shape, parameter_shapes

#: Shapes as text: `512x64,512` is a matrix and a vector.
SHAPES = r"^[1-9]\d{0,8}(x[1-9]\d{0,8})*(,[1-9]\d{0,8}(x[1-9]\d{0,8})*)*$"
MAX_SHAPES = 10_000  # characters
#: Buckets use int32 indices, and a bucket holds at most an eighth of the model plus one parameter.
MAX_NUM_SHAPES, MAX_PARAMETER, MAX_PARAMETERS = 1000, 2**30, 2**33
DEFAULT_WORKLOAD = "digits-mlp"
#: The optimizer assumed for traffic if a method names none: Schedule-Free optimizers average two vectors.
_ONE_ITERATE = {"optimizer": {"kind": "sgd", "momentum": 0}}


@lru_cache(maxsize=16)
def methods(
    name: str | None = None, *, workload: str = DEFAULT_WORKLOAD, shapes: str | None = None, workers: int = 2
) -> MethodsView:
    """Return the methods called `name`, by default all, with their traffic among `workers` in a step on `shapes`.

    `shapes` (`512x64,512`) take the place of those of a built-in workload. Raises `NotFound` for a name or a workload
    that is not there, and ValueError for shapes that are none.
    """
    wanted = _shapes_of(workload) if shapes is None else parsed(shapes)
    found = [each for each in _all() if name in (None, each.name)]
    if not found:
        raise NotFound(_unknown("method", name or "", {each.name for each in _all()}))
    return MethodsView(
        workload=workload if shapes is None else None,
        num_parameters=collectives.num_elements(wanted),
        workers=workers,
        methods=tuple(_view(each, wanted, workers) for each in found),
    )


def parsed(shapes: str) -> tuple[Shape, ...]:
    """Parse shapes such as `512x64,512`. Raises ValueError."""
    if len(shapes) > MAX_SHAPES or not re.fullmatch(SHAPES, shapes):
        raise ValueError(f"`shapes` must be sizes joined by x, shapes joined by commas, as 512x64,512; got {shapes!r}")
    found = tuple(tuple(map(int, shape.split("x"))) for shape in shapes.split(","))
    sizes = [math.prod(shape) for shape in found]
    if len(sizes) > MAX_NUM_SHAPES or max(sizes) >= MAX_PARAMETER or sum(sizes) >= MAX_PARAMETERS:
        raise ValueError(
            f"`shapes` must be at most {MAX_NUM_SHAPES}, of less than {MAX_PARAMETER} elements each and less than "
            f"{MAX_PARAMETERS} together"
        )
    return found


def _shapes_of(workload: str) -> tuple[Shape, ...]:
    kinds = [get_args(each)[1].tag for each in get_args(get_args(WorkloadConfig)[0])]
    built_in = [kind for kind in kinds if kind != "own"]
    if workload not in built_in:
        raise NotFound(f"{_unknown('built-in workload', workload, built_in)}; of your own model give the shapes")
    shapes = parameter_shapes(TypeAdapter(WorkloadConfig).validate_python({"kind": workload}))
    assert shapes is not None
    return shapes


def _unknown(what: str, name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"there is no {what} `{name}`" + (f"; do you mean `{near[0]}`?" if near else f"; there are {sorted(known)}")


@cache
def _all() -> tuple[Composed, ...]:
    """Return every method with the job fields that choose it: part by part, kinds first in each part."""
    found = []
    for part, union in PARTS.items():
        for kind, config in kinds_of(union).items():
            summary = " ".join((config.__doc__ or "").partition("\n\n")[0].split())
            note = note_of(part, kind)
            found.append(Composed(kind, part, summary, note.papers, choosing(part, kind), note.otherwise))
    found += COMPOSED
    parts = list(dict.fromkeys(each.part for each in found))
    return tuple(sorted(found, key=lambda each: parts.index(each.part)))


@cache
def _combinations(name: str, part: str) -> tuple[Combination, ...]:
    """Return the combinations of a method. Cached, because every kind takes a validated job."""
    [method] = [each for each in _all() if (each.name, each.part) == (name, part)]
    return tuple(combinations(method))


@cache
def _adapter(part: str) -> TypeAdapter[BaseModel]:
    return TypeAdapter(PARTS[part])


def _view(method: Composed, shapes: tuple[Shape, ...], workers: int) -> MethodView:
    found = _combinations(method.name, method.part)
    possible = [each for each in found if not each.reason]
    chosen = {part: each for part, each in method.job.items() if part in PARTS}
    return MethodView(
        name=method.name,
        part=method.part,
        summary=method.summary,
        papers=tuple(PaperView(**paper._asdict()) for paper in method.papers),
        job=method.job,
        knobs={
            path: knobs
            for part, each in chosen.items()
            for path, knobs in _knobs(part, _adapter(part).validate_python(each), each)
        },
        combines_with={
            part: tuple(each.kind for each in possible if each.part == part)
            for part in dict.fromkeys(each.part for each in found)
        },
        needs=tuple(NeedsView(part=each.part, kind=each.kind, knobs=each.needs) for each in possible if each.needs),
        refuses=tuple(RefusedView(part=each.part, kind=each.kind, reason=each.reason) for each in found if each.reason),
        traffic=traffic(job(_ONE_ITERATE | method.job), shapes, workers),
    )


def _knobs(path: str, config: BaseModel, chosen: dict[str, Any]) -> Iterator[tuple[str, tuple[Knob, ...]]]:
    """Yield the knobs of a part, then those of its nested choices: `exchange`, then `exchange.levels`."""
    yield path, knobs_of(type(config))
    for name, inner in chosen.items():
        if isinstance(inner, dict):
            yield from _knobs(f"{path}.{name}", getattr(config, name), inner)


def traffic(spec: JobSpec, shapes: tuple[Shape, ...], workers: int) -> TrafficView:
    """Return the mean traffic per step of a worker in the job's first trial, at the stated levels."""
    return traffic_of(next(spec.trials()).replica, shapes, workers)


def traffic_of(replica: ReplicaConfig, shapes: tuple[Shape, ...], workers: int) -> TrafficView:
    """Return the mean traffic per step of one of `workers`; see `mean_traffic_of`."""
    sent = mean_traffic_of(replica, shapes, workers)
    return TrafficView(bytes_per_step=sent.bytes, rounds_per_step=sent.rounds)


def mean_traffic_of(replica: ReplicaConfig, shapes: tuple[Shape, ...], workers: int) -> collectives.MeanTraffic:
    """Return the mean traffic per step of one of `workers`, at the stated levels.

    A searched level counts as its densest value, which sends the most. Other ranges count as their first value. If
    groups of workers exchange as one, `workers` counts the nodes.
    """
    exchange = replica.exchange
    averaged = max(num_iterates(each.kind) for each in contenders(replica.optimizer))
    if isinstance(exchange, AutoConfig):
        likely = (
            mean_traffic(option, shapes, num_workers=workers, like=exchange, num_iterates=averaged)
            for option in replica.menu
        )
        return min(likely, key=lambda each: each.bytes)
    if isinstance(exchange, DriftingConfig):
        return exchange.mean_traffic(shapes, num_workers=workers, num_iterates=averaged)
    if isinstance(replica.blocks, JointSparConfig) and isinstance(exchange, NoneConfig):
        share = first(replica.blocks.share)
        return cost.drawn_step(shapes, num_workers=workers, exchange=exchange, share=share).over(1)
    period = first(replica.sync.period) if isinstance(replica.sync, LocalUpdatesConfig) else 1
    sent = replica.sync.meeting_traffic(
        shapes, num_workers=workers, exchange=exchange, level=exchange.densest, num_iterates=averaged
    )
    return sent.over(period)
