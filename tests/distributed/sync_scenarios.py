"""Scenarios of one rank in a real group under each sync policy; each returns its findings as JSON."""

import copy
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from exchange_harness import Bench, D as GRADIENT, Place, digest
from exchange_kinds import UNEVEN
from sync_harness import D, Problem, SyncBench
from torch import Tensor

from trainers.exchange.node_links import NodeLinks
from trainers.exchange.pacing import LinkPacer
from trainers.exchange.topology import Nodes, Topology
from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.exchange.blockwise.spec import BlockwiseConfig
from trainers.methods.exchange.dense.spec import Bf16Config, Fp16Config, NoneConfig
from trainers.methods.exchange.powersgd.spec import PowerSgdConfig
from trainers.methods.exchange.signsgd.spec import SignSgdConfig
from trainers.methods.exchange.sparse_loco.spec import SparseLoCoConfig
from trainers.methods.exchange.topk.spec import TopKConfig
from trainers.methods.optimizer.spec import (
    AdamWConfig,
    MuonConfig,
    OptimizerConfig,
    ScheduleFreeSgdConfig,
    SgdConfig,
)
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.cocod_sgd.spec import CocodSgdConfig
from trainers.methods.sync.diloco.spec import DiLoCoConfig
from trainers.methods.sync.every_step.spec import EveryStepConfig
from trainers.methods.sync.local_sgd.spec import LocalSgdConfig
from trainers.methods.sync.overlap_local_sgd.spec import OverlapLocalSgdConfig
from trainers.methods.sync.shared.background_thread import AveragingThread
from trainers.methods.sync.spec import SyncConfig
from trainers.methods.sync.stl_sgd.spec import StlSgdConfig
from trainers.methods.sync.streaming_diloco.spec import StreamingDiLoCoConfig
from trainers.methods.sync.vrl_sgd.spec import VrlSgdConfig
from trainers.segment import Segment
from trainers.spec.link import EmulateLink
from trainers.spec.partition import ByLabelPartition, IidPartition
from trainers.spec.workloads import DigitsMlp, OwnWorkload
from trainers.traffic import collectives
from trainers.traffic.block_shards import BlockShards
from trainers.training.checkpoint import Shard, commit_manifest, read_tensors
from trainers.training.replica import Replica

#: Where workloads are as users write them.
MODELS = str(Path(__file__).parents[1] / "trainers")
#: Learning rates that change within rounds and between them.
RATES = [0.1] * 5 + [0.2, 0.05, 0.3] + [0.1] * 6
#: What replicas are told to train; it ends in the middle of a round.
SEGMENT = Segment(num_steps=7, learning_rate=0.1)
LOCAL: dict[str, SyncConfig] = {
    "local_sgd": LocalSgdConfig(period=4),
    "slow momentum": LocalSgdConfig(period=3, slow_momentum=0.6),
    "diloco": DiLoCoConfig(period=4, outer_learning_rate=0.7, outer_momentum=0.6),
    "diloco, heavy ball": DiLoCoConfig(period=3, outer_learning_rate=0.7, outer_momentum=0.6, nesterov=False),
    "stl_sgd": StlSgdConfig(period=2, first_stage=3),
    "stl_sgd, linear": StlSgdConfig(period=2, first_stage=3, growth="linear", gamma=2.0, data="non_iid"),
    "stl_sgd, double": StlSgdConfig(period=2, first_stage=3, growth="double", gamma=2.0, data="non_iid"),
    "vrl_sgd": VrlSgdConfig(period=4),
    "cocod_sgd": CocodSgdConfig(period=3),
    "overlap_local_sgd": OverlapLocalSgdConfig(period=3),
    "streaming_diloco": StreamingDiLoCoConfig(
        period=6, fragments=2, overlap_steps=2, outer_learning_rate=0.7, outer_momentum=0.6
    ),
    "streaming_diloco, mixed": StreamingDiLoCoConfig(
        period=6, fragments=2, merge="mix", mix=0.3, outer_momentum=0.6, nesterov=False
    ),
    "streaming_diloco, replaced": StreamingDiLoCoConfig(period=4, fragments=2, merge="replace"),
}
#: Policies that keep an anchor, and whose rounds are as long as they are told.
ANCHORED = ("local_sgd", "slow momentum", "diloco", "diloco, heavy ball")
#: What each rank trains by between meetings, with moments of its own.
INNER: dict[str, OptimizerConfig] = {
    "sgd": SgdConfig(momentum=0.9),
    "adamw": AdamWConfig(betas=(0.8, 0.95), weight_decay=0.1),
    "muon": MuonConfig(),
    "schedule-free": ScheduleFreeSgdConfig(),
}
#: Policies that are synchronous training when they average in every step, and updates that are linear in gradients.
SYNCHRONOUS: dict[str, SyncConfig] = {
    "local_sgd": LocalSgdConfig(period=1),
    "diloco": DiLoCoConfig(period=1),
    "stl_sgd": StlSgdConfig(period=1, first_stage=100),
    "vrl_sgd": VrlSgdConfig(period=1),
}
LINEAR: dict[str, OptimizerConfig] = {
    "sgd": SgdConfig(momentum=0.0),
    "momentum": SgdConfig(momentum=0.9, nesterov=True, weight_decay=0.01, warmup_steps=3),
    "schedule-free": ScheduleFreeSgdConfig(weight_decay=0.01, warmup_steps=3),
}
COMPRESSED: dict[str, tuple[ExchangeConfig, float | None]] = {
    "topk": (TopKConfig(density=0.05, selection="exact", values="float32", aggregate="gather"), 0.05),
    "topk, all": (TopKConfig(density=1.0, values="float32"), 1.0),
    "powersgd": (PowerSgdConfig(rank=1, min_saving=1.1, values="float32"), 1),
    "signsgd": (SignSgdConfig(), None),
    "blockwise": (BlockwiseConfig(), None),
    "blockwise, 8 bits": (BlockwiseConfig(bits=8), None),
    "sparse_loco": (SparseLoCoConfig(density=0.05, chunk=64), None),
    "sparse_loco, no decay": (SparseLoCoConfig(density=0.05, decay=1.0), None),
}
#: What replicas train by that are apart.
APART: dict[str, dict[str, Any]] = {
    **{name: {"sync": config} for name, config in LOCAL.items()},
    "diloco, compressed, adamw inside": {
        "sync": LOCAL["diloco"],
        "optimizer": INNER["adamw"],
        "exchange": TopKConfig(density=0.05),
    },
    "sparse_loco, adamw inside": {
        "sync": LOCAL["diloco"],
        "optimizer": INNER["adamw"],
        "exchange": SparseLoCoConfig(),
    },
    "streaming_diloco, compressed, adamw inside": {
        "sync": StreamingDiLoCoConfig(period=8, fragments=4),
        "optimizer": INNER["adamw"],
        "exchange": BlockwiseConfig(),
    },
}
ROUNDED: dict[str, ExchangeConfig] = {"fp16": Fp16Config(), "bf16": Bf16Config()}


def sync(rank: int, num_workers: int) -> dict[str, Any]:
    return _sync(Place(rank, num_workers))


def sync_of_two(rank: int, num_workers: int) -> dict[str, Any]:
    """The same for the first two ranks. Nothing may follow it: the others do not wait."""
    group = dist.new_group([0, 1])
    return _sync(Place(rank, 2, group)) if rank < 2 else {}


def sync_on_nodes(rank: int, num_workers: int) -> dict[str, Any]:
    """Where ranks that share nodes of different sizes are after each step, and what they sent between nodes."""
    place, seen = Place.on_nodes(rank, UNEVEN), {}
    for name, config in LOCAL.items():
        bench = SyncBench(config, place)
        seen[name] = {"trace": bench.run(RATES), "sent": sum(bench.node_links.between.ledger.take().values())}
    return seen


def _sync(place: Place) -> dict[str, Any]:
    return {
        "traces": {name: SyncBench(config, place).run(RATES) for name, config in LOCAL.items()},
        "every step": {name: _every_step(place, optimizer) for name, optimizer in LINEAR.items()},
        "restored": {name: _restored(place, config) for name, config in LOCAL.items()},
        "traffic": {name: _traffic(place, config) for name, config in LOCAL.items()},
        "stopped": {name: _stopped(place, config) for name, config in LOCAL.items()},
        "compressed": {name: _compressed(place, *COMPRESSED[name]) for name in COMPRESSED},
        "adamw inside": {name: _inside(place, LOCAL[name]) for name in ("diloco", "diloco, heavy ball")},
        "plain diloco": {name: _plain(place, *COMPRESSED[name]) for name in COMPRESSED},
        "not met": {name: _not_met(place, LOCAL[name]) for name in ANCHORED},
        "outer rates": {rate: _at_outer_rate(place, rate) for rate in ("1.0", "0.7")},
        "alone": _alone_at_an_entry(place),
        "rounded": {name: _rounded(place, ROUNDED[name]) for name in ROUNDED},
        "vrl": _drift(place, SgdConfig(momentum=0.0)),
        "vrl, momentum": _drift(place, SgdConfig(momentum=0.8, nesterov=True, weight_decay=0.01)),
    }


def _every_step(place: Place, optimizer: OptimizerConfig) -> dict[str, list[list[float]]]:
    """Where training goes that averages in every step, and where synchronous training does."""
    policies: dict[str, SyncConfig] = {"every_step": EveryStepConfig(), **SYNCHRONOUS}
    if isinstance(optimizer, ScheduleFreeSgdConfig):
        del policies["vrl_sgd"]
    return {name: SyncBench(config, place, optimizer=optimizer).run(RATES) for name, config in policies.items()}


def _restored(place: Place, config: SyncConfig) -> bool:
    """Whether training in the middle of a round goes on alike from a copy of the state, on this bench and another."""
    first, other = SyncBench(config, place), SyncBench(config, place)
    first.run(RATES[:8])
    state = first.state()
    expected = first.run(RATES[8:])
    first.load(state)
    other.load(state)
    return [bench.run(RATES[8:]) for bench in (first, other)] == [expected] * 2


def _traffic(place: Place, config: SyncConfig) -> dict[str, Any]:
    """What this rank sent in each step, and what was foreseen of one that averages."""
    bench = SyncBench(config, place)
    sent = []
    for _ in range(6):
        bench.step(0.1, period=2)
        sent.append(sum(bench.node_links.between.ledger.take().values()))
    bench.policy.settle()
    meeting = config.meeting_traffic([(D,)], num_workers=place.num_workers, exchange=NoneConfig())
    return {"sent": sent, "foreseen": meeting.bytes}


def _stopped(place: Place, config: SyncConfig) -> list[bool]:
    """Whether each step told of a gradient that was not finite on the last rank, in the second step."""
    bench = SyncBench(config, place)
    told = []
    for step in range(9):
        if step == 1 and place.rank == place.num_workers - 1:
            bench.problem = Problem(bench.problem.curvature * float("nan"), bench.problem.optimum)
        told.append(bench.step(0.1, period=3).diverged)
        if told[-1]:
            break
    bench.policy.settle()
    return told


def _compressed(place: Place, exchange: ExchangeConfig, level: float | None) -> dict[str, Any]:
    """Where a compressed average is when all is counted that was not sent, beside the sums of what ranks moved."""
    bench = SyncBench(LocalSgdConfig(period=3), place, exchange=exchange)
    moved, before = torch.zeros(D), bench.x
    densities, faded = [], 1 - getattr(exchange, "decay", 1.0)
    for step in range(12):
        x = before if step % 3 == 0 else bench.x
        if step % 3 == 2 and faded:
            moved -= faded * bench.policy.exchange.tensors()["residual"]
        own = x - 0.1 * bench.problem.gradient(x)  # what the step makes of it, before any average
        density = bench.step(0.1, level=level).density
        if step % 3 == 2:
            moved += before - own
            before = bench.x
            densities.append(density)
    kept = kept_of(bench, place, exchange)
    return {"moved": moved.tolist(), "kept": kept.tolist(), "x": bench.x.tolist(), "densities": densities}


def kept_of(bench: SyncBench, place: Place, exchange: ExchangeConfig) -> Tensor:
    """Return what this rank has not sent of its own, and, as owner, of the sums of all."""
    state = bench.policy.exchange.tensors()
    kept = state.get("residual", torch.zeros(D)).clone()
    if "server.0" in state:
        own = kept[BlockShards(D, place.num_workers, exchange.block).span(place.rank)]
        own += place.num_workers * state["server.0"][: len(own)]
    return kept


def _inside(place: Place, config: SyncConfig) -> list[list[float]]:
    """Where AdamW leads between meetings, and the policy at them."""
    return SyncBench(config, place, optimizer=INNER["adamw"]).run(RATES)


def _plain(place: Place, exchange: ExchangeConfig, level: float | None) -> dict[str, bool]:
    """Whether DiLoCo that only averages goes where local SGD does, bit for bit, by each inner optimizer."""

    def trace(config: SyncConfig, optimizer: OptimizerConfig) -> list[list[float]]:
        return SyncBench(config, place, optimizer=optimizer, exchange=exchange).run(RATES, level=level)

    plain = DiLoCoConfig(period=3, outer_learning_rate=1.0, outer_momentum=0.0)
    return {
        name: trace(plain, optimizer) == trace(LocalSgdConfig(period=3), optimizer) for name, optimizer in INNER.items()
    }


def _at_outer_rate(place: Place, rate: str) -> dict[str, list[float]]:
    """Where the average of a first round of SparseLoCo leads from 0, and what is kept of it."""
    config = DiLoCoConfig(period=3, outer_learning_rate=float(rate))
    bench = SyncBench(config, place, exchange=COMPRESSED["sparse_loco"][0])
    bench.run([0.1] * 3)
    return {"x": bench.x.tolist(), "kept": bench.policy.exchange.tensors()["residual"].tolist()}


def _alone_at_an_entry(place: Place) -> dict[str, list[float]]:
    """What arrives where each rank has one entry of its own, which no other sends, in every bucket."""
    bench = Bench(SparseLoCoConfig(density=0.001), place)
    gradient = torch.zeros(GRADIENT)
    for bucket in bench.buffer.buckets:
        gradient[bucket.start + 10 * place.rank] = 1.0 + place.rank
    bench.step(gradient, None)
    firsts = [bucket.start + 10 * rank for bucket in bench.buffer.buckets for rank in range(place.num_workers)]
    return {"received": bench.buffer.gradient[firsts].tolist(), "sum": [float(bench.buffer.gradient.sum())]}


def _not_met(place: Place, config: SyncConfig) -> dict[str, Any]:
    """What is kept of a compressed average after two rounds, and after one more in which the last rank diverged."""
    bench = SyncBench(config, place, exchange=COMPRESSED["topk"][0])

    def kept() -> dict[str, list[float]]:
        tensors = bench.state()[0] | bench.policy.exchange.tensors()
        return {name: tensor.tolist() for name, tensor in tensors.items() if tensor.is_floating_point()}

    bench.run([0.1] * 6, level=0.05, period=3)
    before = kept()
    if place.rank == place.num_workers - 1:
        bench.problem = Problem(bench.problem.curvature * float("nan"), bench.problem.optimum)
    told = [bench.step(0.1, level=0.05, period=3).diverged for _ in range(3)]
    return {"told": told, "before": before, "after": kept()}


def _rounded(place: Place, exchange: ExchangeConfig) -> dict[str, list[float]]:
    """How far this rank went from 0 in a round, and where the average of all ranks is."""
    bench = SyncBench(LocalSgdConfig(period=3), place, exchange=exchange)
    bench.run([0.1] * 2)
    moved = bench.x - 0.1 * bench.problem.gradient(bench.x)  # what the third step makes of it, before the average
    bench.step(0.1)
    return {"moved": moved.tolist(), "x": bench.x.tolist()}


def _drift(place: Place, optimizer: SgdConfig) -> dict[str, Any]:
    """Corrections while training begins, and how far a round at the end leads away from where it began."""
    benches = {
        name: SyncBench(config, place, optimizer=optimizer)
        for name, config in (("vrl_sgd", VrlSgdConfig(period=5)), ("local_sgd", LocalSgdConfig(period=5)))
    }
    vrl = benches["vrl_sgd"]
    corrections = []
    for rate in RATES:
        vrl.step(rate / 4)
        corrections.append(vrl.state()[0]["drift"].tolist())
    rate, ends = 0.1 * (1 - optimizer.momentum), {}
    for name, bench in benches.items():
        bench.run([rate] * (400 - bench.number % 5))
        begun = bench.x.clone()
        within = [float((torch.tensor(x) - begun).abs().max()) for x in bench.run([rate] * 4)]
        ends[name] = {"within": max(within), "begun": begun.tolist()}
    return {"corrections": corrections, "ends": ends}


def paced_average(rank: int, num_workers: int) -> dict[str, float]:
    """How long an average takes behind training over a slow link."""
    link = EmulateLink(mbps=10, latency_ms=5)
    node_links = NodeLinks(Topology.stated(num_workers, 1), rank, LinkPacer(link))
    vector = torch.zeros(12_500)
    background = AveragingThread(node_links, vector.device, threads=1)
    started = time.monotonic()
    background.launch(vector)
    background.wait()
    seconds = time.monotonic() - started
    return {
        "seconds": seconds,
        "least": collectives.all_reduce(vector.nbytes, num_workers).seconds(link),
    }


def apart(rank: int, num_workers: int) -> dict[str, Any]:
    """Replicas that train by themselves on digits of their own, under each policy, and by what else is apart."""
    return {name: replicas_apart(rank, num_workers, **parts) for name, parts in APART.items()}


def replicas_apart(rank: int, num_workers: int, **parts: Any) -> dict[str, Any]:
    """A replica in the middle of a round: saved, evaluated, gone on with, rewound, and gone on with by another."""
    first, second = (joined_replica(rank, num_workers, **parts) for _ in range(2))
    first.run(SEGMENT)
    first.snapshot("stage")
    saved_at = f"{Path.cwd()}/apart"
    write_checkpoint(first, saved_at)
    evaluations = [first.evaluate().loss, first.evaluate().loss]
    runs = [first.run(SEGMENT)]
    first.restore("stage")
    runs.append(first.run(SEGMENT))
    second.load(saved_at)
    evaluations.append(second.evaluate().loss)
    runs.append(second.run(SEGMENT))
    return {
        "losses": [run.losses for run in runs],
        "sent": [run.bytes_sent for run in runs],
        "overlaps": isinstance(first.config.sync, StreamingDiLoCoConfig),
        "bits": [digest(list(replica.model.parameters())) for replica in (first, second)],
        "evaluations": evaluations,
        "of the mean": loss_of_the_mean(second),
        "evaluated": second.evaluate().loss,
    }


def taught(rank: int, num_workers: int) -> list[dict[str, Any]]:
    """A frozen teacher that follows its rank's parameters: within a round, and when the ranks have met."""
    workload = OwnWorkload(factory="own_models:TaughtNormed", path=MODELS)
    sync = LocalSgdConfig(period=4)
    replica = joined_replica(rank, num_workers, workload=workload, sync=sync, partition=IidPartition())
    teacher, seen = replica.model.get_parameter("teacher.weight"), []
    for num_steps in (6, 2):
        replica.run(Segment(num_steps=num_steps, learning_rate=0.05))
        before = teacher.tolist()
        [sent] = replica.evaluate().bytes_sent
        exported = exported_by(replica, "taught")
        seen.append({"own": before, "afterwards": teacher.tolist(), "sent": sent, "exported": exported})
    return seen


def exported_by(replica: Replica, stem: str) -> dict[str, list[Any]]:
    """Have `replica` export; returns what the first rank has written, and nothing on others. Collective."""
    url = f"{Path.cwd()}/{stem}.safetensors"
    replica.export(url)
    return {} if replica.rank else {name: tensor.tolist() for name, tensor in read_tensors(url).items()}


def loss_of_the_mean(replica: Replica) -> float:
    """Return the validation loss of the mean of the nodes' parameters, computed aside; collective."""
    model = copy.deepcopy(replica.model)
    [node] = [node for node in replica.nodes if replica.rank in node]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter /= len(node) * len(replica.nodes)
            dist.all_reduce(parameter)
        batch = replica.workload.validation[torch.arange(len(replica.workload.validation))]
        return float(replica.workload.loss(model, batch))


def joined_replica(rank: int, num_workers: int, *, nodes: Nodes | None = None, **parts: Any) -> Replica:
    common = {
        "workload": DigitsMlp(),
        "partition": ByLabelPartition(),
        "optimizer": SgdConfig(),
        "exchange": NoneConfig(),
    }
    replica = Replica(ReplicaConfig(**(common | parts)), rank, num_workers, device="cpu")
    if nodes is not None:
        replica._settle(Topology.of(nodes))
    replica._node_links.join()
    return replica


def write_checkpoint(replica: Replica, url: str) -> None:
    """Complete a checkpoint, as a group does."""
    Path(f"{url}-{replica.rank}.json").write_text(json.dumps([each.model_dump() for each in replica.save(url)]))
    dist.barrier()
    if replica.rank == 0:
        written = [Path(f"{url}-{rank}.json").read_text() for rank in range(replica.num_workers)]
        shards = [Shard.model_validate(shard) for shards in written for shard in json.loads(shards)]
        commit_manifest(url, shards, replica.nodes)
    dist.barrier()
