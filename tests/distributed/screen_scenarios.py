"""Averages that leave out a rank when the last rank has something wrong."""

from typing import Any

import torch
import torch.distributed as dist
from exchange_harness import Place, digest
from exchange_kinds import UNEVEN
from sync_harness import Problem, SyncBench
from sync_scenarios import COMPRESSED, MODELS, RATES, exported_by, joined_replica, kept_of
from torch import Tensor

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import AdamWConfig
from trainers.methods.sync.diloco.spec import DiLoCoConfig
from trainers.methods.sync.local_sgd.spec import LocalSgdConfig
from trainers.methods.sync.spec import SyncConfig
from trainers.methods.sync.stl_sgd.spec import StlSgdConfig
from trainers.methods.sync.streaming_diloco.spec import StreamingDiLoCoConfig
from trainers.segment import Segment
from trainers.spec.partition import IidPartition
from trainers.spec.workloads import OwnWorkload

SCREENED: dict[str, Any] = {"max_z": 3.0, "warmup_averages": 3}
AVERAGED: dict[str, SyncConfig] = {
    "local_sgd": LocalSgdConfig(period=2, slow_momentum=0.5),
    "diloco": DiLoCoConfig(period=2, outer_momentum=0.5),
    "stl_sgd": StlSgdConfig(period=2, first_stage=3),
    "streaming_diloco": StreamingDiLoCoConfig(period=4, fragments=2, outer_momentum=0.5),
}
WRONG = {"far": 1e6, "nan": float("nan")}


def screened(rank: int, num_workers: int) -> dict[str, Any]:
    return _screened(Place(rank, num_workers))


def screened_pairs(rank: int, num_workers: int) -> dict[str, Any]:
    """The same for pairs of the ranks."""
    groups = [dist.new_group([first, first + 1]) for first in range(0, num_workers, 2)]
    return _screened(Place(rank % 2, 2, groups[rank // 2]))


def screened_on_nodes(rank: int, num_workers: int) -> dict[str, Any]:
    """A rank that goes astray among ranks that share nodes of different sizes."""
    place = Place.on_nodes(rank, UNEVEN)
    return {"wrong": {name: _wrong(place, factor, averages=4) for name, factor in WRONG.items()}}


def _screened(place: Place) -> dict[str, Any]:
    return {
        "alike": {name: _is_alike(place, config) for name, config in AVERAGED.items()},
        "wrong": {name: _wrong(place, factor, averages=4) for name, factor in WRONG.items()},
        "in the warm-up": _wrong(place, WRONG["far"], averages=2),
        "all wrong": {name: _all_wrong(place, factor) for name, factor in WRONG.items()},
        "compressed": _compressed(place),
        "restored": _restored(place),
        "streamed": _streamed(place),
        "sent": _sent(place),
    }


def lost_replica(rank: int, num_workers: int) -> dict[str, Any]:
    """A replica whose last rank has losses that are not finite for one round, and trains on."""
    sync = LocalSgdConfig(period=4, **SCREENED)
    replica = joined_replica(rank, num_workers, sync=sync, optimizer=AdamWConfig(), partition=IidPartition())
    segment, loss = Segment(num_steps=16, learning_rate=0.003), replica.workload.loss
    before = replica.run(segment)
    if rank == num_workers - 1:
        replica.workload.loss = lambda model, batch: float("nan") * loss(model, batch)
    lost = replica.run(segment.model_copy(update={"num_steps": 4}))
    replica.workload.loss = loss
    after = replica.run(segment)
    state = replica.parts.optimizer.tensors().values()
    return {
        "results": [each.model_dump(mode="json") for each in (before, lost, after)],
        "is finite": all(bool(tensor.isfinite().all()) for tensor in state),
        "parameters": digest(list(replica.parts.optimizer.parameters.values())),
        "within a round": _lost_within_a_round(rank, num_workers),
    }


def _lost_within_a_round(rank: int, num_workers: int) -> dict[str, Any]:
    """What ranks have, evaluate and export before an average that leaves out the last, whose inputs are not finite."""
    workload = OwnWorkload(factory="own_models:Averaged", params={"in_place": True}, path=MODELS)
    sync = LocalSgdConfig(period=4, **SCREENED)
    replica = joined_replica(rank, num_workers, workload=workload, sync=sync, partition=IidPartition())
    loss = replica.workload.loss
    if rank == num_workers - 1:
        replica.workload.loss = lambda model, batch: loss(model, [float("nan") * each for each in batch])
    replica.run(Segment(num_steps=2, learning_rate=0.05))
    replica.workload.loss = loss
    own = {name: tensor.tolist() for name, tensor in replica.model.state_dict().items()}
    return {"own": own, "evaluated": replica.evaluate().loss, "exported": exported_by(replica, "within")}


def _is_alike(place: Place, config: SyncConfig) -> bool:
    """Whether training goes where it does when nobody may be left out."""
    screening = config.model_copy(update=SCREENED)
    return SyncBench(screening, place).run(RATES) == SyncBench(config, place).run(RATES)


def _is_last(place: Place) -> bool:
    return place.rank == place.num_workers - 1


class Coupled(Problem):
    """A worker's part of which no entry of the gradient is finite where one of x is not, as in a net."""

    def gradient(self, x: Tensor) -> Tensor:
        return super().gradient(x) + 0 * x.sum()


def _turn_wrong(bench: SyncBench, factor: float) -> Problem:
    """Have the gradients of a bench be wrong by a factor; returns the problem that was right."""
    right = bench.problem
    bench.problem = Problem(right.curvature * factor, right.optimum)
    return right


def _wrong(place: Place, factor: float, *, averages: int) -> dict[str, Any]:
    """A round that is wrong on the last rank, after so many averages: from where, how far, and to where it led."""
    bench = SyncBench(LocalSgdConfig(period=2, **SCREENED), place)
    bench.run([0.1] * (2 * averages))
    began = bench.x
    if _is_last(place):
        _turn_wrong(bench, factor)
        bench.loss = factor
    told = [bench.step(0.1).diverged]
    moved = began - (bench.x - 0.1 * bench.problem.gradient(bench.x))
    told.append(bench.step(0.1).diverged)
    return {"told": told, "began": began.tolist(), "moved": moved.tolist(), "x": bench.x.tolist()}


def _all_wrong(place: Place, factor: float) -> dict[str, Any]:
    """What is kept before and after a round that is wrong on all ranks."""
    bench = SyncBench(DiLoCoConfig(period=2, outer_momentum=0.5, **SCREENED), place)

    def kept() -> dict[str, list[float]]:
        return {name: tensor.tolist() for name, tensor in bench.state()[0].items()} | {"x": bench.x.tolist()}

    bench.run([0.1] * 8)
    before = kept()
    _turn_wrong(bench, factor)
    told = [bench.step(0.1).diverged for _ in range(2)]
    return {"told": told, "before": before, "after": kept()}


def _compressed(place: Place) -> dict[str, Any]:
    """What the ranks moved in rounds that counted, kept, and came to, where the last one's fifth round did not."""
    exchange = COMPRESSED["blockwise"][0]
    bench = SyncBench(LocalSgdConfig(period=2, **SCREENED), place, exchange=exchange)
    moved, right = torch.zeros_like(bench.x), bench.problem
    for average in range(8):
        is_wrong = average == 4 and _is_last(place)
        if is_wrong:
            _turn_wrong(bench, float("nan"))
        began = bench.x
        bench.step(0.1)
        ends = bench.x - 0.1 * bench.problem.gradient(bench.x)
        bench.step(0.1)
        bench.problem = right
        if not is_wrong:
            moved += (began - ends) * (place.num_workers / (place.num_workers - 1) if average == 4 else 1)
    kept = kept_of(bench, place, exchange)
    return {"moved": moved.tolist(), "kept": kept.tolist(), "x": bench.x.tolist()}


def _restored(place: Place) -> bool:
    """Whether a copy of the state judges what follows as the original does."""
    first, other = (SyncBench(DiLoCoConfig(period=2, **SCREENED), place) for _ in range(2))
    first.run([0.1] * 9)
    state, seen = first.state(), []
    for bench in (first, other):
        bench.load(state)
        if _is_last(place):
            _turn_wrong(bench, WRONG["far"])
        seen.append((bench.run([0.1] * 5), bench.state()[1]))
    return seen[0] == seen[1]


def _streamed(place: Place) -> dict[str, Any]:
    """Fragments that are not finite on the last rank for a period, and what is left of that two periods later."""
    bench, told, anchors = SyncBench(AVERAGED["streaming_diloco"].model_copy(update=SCREENED), place), [], []
    bench.problem = Coupled(bench.problem.curvature, bench.problem.optimum)
    for step in range(28):
        if step == 16 and _is_last(place):
            right = _turn_wrong(bench, float("nan"))
        if step == 20 and _is_last(place):
            bench.problem = right
        told.append(bench.step(0.1).diverged)
        tensors = bench.state()[0]
        anchors.append(digest([tensors["0.anchor"], tensors["1.anchor"]]))
    return {"told": told, "anchors": anchors, "is finite": bool(bench.x.isfinite().all())}


def _sent(place: Place) -> list[int]:
    """The bytes of a round, and those foreseen."""
    config = LocalSgdConfig(period=2, **SCREENED)
    bench = SyncBench(config, place)
    bench.run([0.1] * 2)
    meeting = config.meeting_traffic([(len(bench.x),)], num_workers=place.num_workers, exchange=NoneConfig())
    return [sum(bench.node_links.between.ledger.take().values()), meeting.bytes]
