"""What one rank of a real gloo group does in a test, and how a test has ranks do it.

Each scenario returns what this rank saw, as JSON.
"""

import json
import multiprocessing
import os
import signal
import time
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from attach_again_scenario import attached_again
from attach_checkpoint_scenario import inherited, saved
from attach_overlap_scenario import overlapped
from attach_scenario import attached, evaluated, joined
from attach_together_scenario import together
from auto_scenarios import auto, auto_of_two, auto_on_nodes
from blocks_scenarios import jointspar, jointspar_on_nodes
from ddp_scenario import ddp
from exchange_harness import Bench, D, Place, digest, gradients
from exchange_kinds import (
    averages,
    changing_levels,
    changing_rates,
    dense_limits,
    dense_limits_on_nodes,
    kinds,
    kinds_by_operators,
    kinds_on_even_nodes,
    kinds_on_uneven_nodes,
    near_limits,
    pairs,
)
from fsdp_scenario import fsdp
from gpu_scenarios import on_gpus, scripts_on_gpus
from level_scenarios import batches, batches_in_pairs, batches_on_nodes, levels, levels_in_pairs
from local_steps_scenarios import local_steps, local_steps_in_pairs
from lost_ranks import dead_rank, silent_rank
from screen_scenarios import lost_replica, screened, screened_on_nodes, screened_pairs
from streaming_scenarios import streaming, streaming_pairs
from sync_scenarios import apart, paced_average, sync, sync_of_two, sync_on_nodes, taught, write_checkpoint
from two_way_scenarios import drifting_replicas_on_nodes, two_way, two_way_of_two, two_way_on_nodes, two_way_replicas
from update_scenarios import updates
from whole_set_scenarios import paced_gather, slow_gather, whole_set, whole_set_of_the_present

from tests.support.patience import crowd
from trainers.exchange.connection import Connection
from trainers.exchange.ledger import Ledger
from trainers.exchange.node_links import found
from trainers.exchange.pacing import LinkPacer, Unpaced
from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.optimizer.spec import OptimizerConfig, ScheduleFreePlusConfig, ScheduleFreeSgdConfig, SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.link import EmulateLink
from trainers.spec.workloads import DigitsMlp
from trainers.traffic import collectives
from trainers.training import process_group  # noqa: F401  (lists what is preloaded, so it comes before this file)
from trainers.training.replica import Replica

Reports = dict[str, list[dict[str, Any]]]  # by scenario, then by rank

RANKS_S = 240 * crowd()
#: What replicas are told to train.
SEGMENT = Segment(num_steps=8, learning_rate=0.5)
# Imported once for all groups of this process, in place of what `process_group` lists.
multiprocessing.get_context("forkserver").set_forkserver_preload([
    "trainers.training.rank", "trainers.exchange.kernels.warm", "torch._dynamo", "torch.distributed.fsdp",
    "torch.distributed.checkpoint", "wiretune.loop",
])  # fmt: skip
#: The scenario that the last rank does not survive.
DEADLY = "dead_rank"


def conservation(rank: int, num_workers: int) -> dict[str, Any]:
    """50 steps over changing levels, a dense one among them."""
    bench = Bench(ThresholdConfig(density=(0.01, 1.0)), Place(rank, num_workers))
    densities = [
        bench.step(gradients(rank, step), level).density
        for step, level in enumerate([0.02] * 15 + [0.1] * 15 + [1.0] * 3 + [0.05] * 17)
    ]
    return bench.report() | {"densities": densities}


def overflow(rank: int, num_workers: int) -> dict[str, Any]:
    """A payload that is far too small, every third step."""
    bench = Bench(ThresholdConfig(density=0.05, hold="run"), Place(rank, num_workers))
    sent, capacities = [], []
    for step in range(12):
        if step % 3 == 1:
            scalars = bench.exchange.scalars()
            selector = scalars["selector"] | {"capacities": [8, 8, 8]}
            bench.exchange.load_scalars(scalars | {"selector": selector})
        sent.append((bench.step(gradients(rank, step), 0.05).density or 0.0) * D)
        capacities.append(sum(bench.exchange.scalars()["selector"]["capacities"]))
    return bench.report() | {"sent": sent, "capacities": capacities}


def bad_gradient(rank: int, num_workers: int) -> dict[str, Any]:
    """One rank's gradient, or loss, is not finite at the fourth step, first or later of its level."""
    outcomes = {}
    for name, level, config in (
        ("none", 1.0, NoneConfig()),
        ("sparse", 0.02, ThresholdConfig(density=(0.01, 1.0))),
        ("calibrating", 0.3, ThresholdConfig(density=(0.01, 1.0))),
        ("dense", 1.0, ThresholdConfig(density=(0.01, 1.0))),
    ):
        bench = Bench(config, Place(rank, num_workers))
        for step in range(3):
            bench.step(gradients(rank, step), 0.02)
        before = bench.report()["residual"]
        bad = gradients(rank, 3)
        bad[7] = float("inf") if rank == num_workers - 1 else bad[7]
        diverged = bench.step(bad, level).diverged
        outcomes[name] = {
            "diverged": diverged,
            "residual kept": bench.report()["residual"] == before,
            "goes on": not bench.step(gradients(rank, 4), level).diverged,
        }
    return outcomes


def paced_messages(rank: int, num_workers: int) -> dict[str, Any]:
    """When a message left, and when it came; all but its source wait for it, some for long."""
    link = EmulateLink(mbps=1, latency_ms=50)
    connection = Connection(num_workers, LinkPacer(link), Ledger())
    message = torch.zeros(6250, dtype=torch.uint8)
    times = [time.monotonic()]
    if rank == 1:
        connection.send(message, 0, {"gradient": message.nbytes})
    elif rank == 0:
        connection.receive(message, 1)
    times.append(time.monotonic())
    connection.broadcast(message, 0, {"gradient": message.nbytes})
    times.append(time.monotonic())
    return {
        "times": times,
        "send": collectives.point_to_point(message.nbytes, num_workers).seconds(link),
        "broadcast": collectives.broadcast(message.nbytes, num_workers).seconds(link),
    }


def sums_in_pairs(rank: int, num_workers: int) -> dict[str, list[bool]]:
    """Whether two ranks' sums have the bits of an all-reduce on each; whether they were swapped, as small ones are."""
    pairs = [dist.new_group([first, first + 1]) for first in range(0, num_workers, 2)]
    connection = Connection(2, Unpaced(), Ledger())
    connection.group = pairs[rank // 2]
    draws, told = torch.Generator().manual_seed(rank), {}
    for dtype, shape in product((torch.float32, torch.float16, torch.bfloat16), ((1,), (30, 40), (100, 400))):
        for name, values in (("", torch.randn(shape, generator=draws)), (", strided", torch.randn(shape[::-1]).T)):
            ours = values.to(dtype)
            whole = ours.clone(memory_format=torch.contiguous_format)
            with patch.object(dist, "all_gather_single", wraps=dist.all_gather_single) as swap:
                connection.all_reduce_sum(ours, {"gradient": ours.nbytes})
            dist.all_reduce(whole, group=connection.group)
            told[f"{dtype} {shape}{name}"] = [torch.equal(ours, whole), swap.called, ours.nbytes <= 65_536]
    return told


def early_stop(rank: int, num_workers: int) -> dict[str, Any]:
    """A replica of which one rank's gradient is NaN from the sixth step on."""
    replica = _replica(rank, num_workers, NoneConfig() if num_workers == 4 else ThresholdConfig(density=0.02))
    if rank == 0:
        weight = replica.model.get_parameter("2.weight")
        weight.register_hook(lambda grad: grad * float("nan") if replica.step == 5 else grad)
    first = replica.run(Segment(num_steps=20, learning_rate=0.1))
    before = digest(list(replica.model.parameters()))
    again = replica.run(Segment(num_steps=20, learning_rate=0.1))
    return {
        "losses": [first.losses, again.losses],
        "diverged": [first.diverged, again.diverged],
        "unchanged": digest(list(replica.model.parameters())) == before,
    }


def equal_parameters(rank: int, num_workers: int) -> dict[str, Any]:
    """Parameters after training, sparse and then dense, by optimizer; one of them takes steps by the loss."""
    ends = {}
    for optimizer in (ScheduleFreeSgdConfig(), ScheduleFreePlusConfig()):
        replica = _replica(rank, num_workers, ThresholdConfig(density=(0.01, 1.0)), optimizer=optimizer)
        losses = [replica.run(Segment(num_steps=15, learning_rate=0.5, level=level)).losses for level in (0.02, 1.0)]
        ends[optimizer.kind] = {"bits": digest(list(replica.model.parameters())), "losses": losses}
    return ends


def replicas_on_nodes(rank: int, num_workers: int) -> dict[str, Any]:
    """Training on two nodes, gone on with by fresh ranks on the same nodes, and by ranks that are nodes themselves."""
    exchange, url = ThresholdConfig(density=0.05), f"{Path.cwd()}/checkpoint"
    first, second = (_replica(rank, num_workers, exchange, per_node=2) for _ in range(2))
    moved, dense = _replica(rank, num_workers, exchange), _replica(rank, num_workers, NoneConfig(), per_node=2)
    for replica in (first, second, dense):
        replica._node_links.join()
    first.run(SEGMENT)
    write_checkpoint(first, url)
    for replica in (second, moved):
        replica.load(url)
    begun = moved._exchange.tensors()["residual"].clone()
    mean = first._exchange.tensors()["residual"].clone() if first._node_links.leads else torch.zeros_like(begun)
    moved._node_links.all_reduce_sum(mean, {"state": mean.nbytes})
    reports = [replica.run(SEGMENT) for replica in (first, second, moved, dense)]
    return {
        "losses": [each.losses for each in reports],
        "sent": sum(reports[-1].bytes_sent[0].values()),
        "dense": reports[-1].bytes_dense,
        "entries": collectives.num_elements(dense.shapes),
        "bits": [digest(list(replica.model.parameters())) for replica in (first, second, moved)],
        "kept": bool(mean.any()) and torch.allclose(begun, mean / 2),
        "found": found(num_workers, torch.device("cpu")).nodes,
    }


def _replica(
    rank: int,
    num_workers: int,
    exchange: ExchangeConfig,
    *,
    per_node: int = 1,
    optimizer: OptimizerConfig | None = None,
) -> Replica:
    optimizer = optimizer or (SgdConfig() if isinstance(exchange, NoneConfig) else ScheduleFreeSgdConfig())
    config = ReplicaConfig(workload=DigitsMlp(), optimizer=optimizer, exchange=exchange, workers_per_node=per_node)
    return Replica(config, rank, num_workers, device="cpu")


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        conservation,
        overflow,
        dense_limits,
        kinds,
        kinds_by_operators,
        pairs,
        kinds_on_even_nodes,
        kinds_on_uneven_nodes,
        dense_limits_on_nodes,
        averages,
        near_limits,
        changing_levels,
        changing_rates,
        bad_gradient,
        paced_messages,
        sums_in_pairs,
        early_stop,
        equal_parameters,
        replicas_on_nodes,
        sync,
        sync_of_two,
        sync_on_nodes,
        apart,
        taught,
        paced_average,
        streaming,
        streaming_pairs,
        lost_replica,
        screened,
        screened_pairs,
        screened_on_nodes,
        jointspar,
        jointspar_on_nodes,
        levels,
        levels_in_pairs,
        auto,
        auto_of_two,
        auto_on_nodes,
        two_way,
        two_way_of_two,
        two_way_on_nodes,
        two_way_replicas,
        drifting_replicas_on_nodes,
        local_steps,
        local_steps_in_pairs,
        updates,
        whole_set,
        whole_set_of_the_present,
        paced_gather,
        slow_gather,
        batches,
        batches_in_pairs,
        batches_on_nodes,
        ddp,
        attached,
        attached_again,
        saved,
        inherited,
        together,
        overlapped,
        evaluated,
        joined,
        fsdp,
        on_gpus,
        scripts_on_gpus,
        silent_rank,
        dead_rank,
    )
}


def run_ranks(folder: Path, num_workers: int, names: list[str]) -> Reports:
    """Run the scenarios `names` one after the other on `num_workers` ranks; of a rank that died there is no report."""
    context = multiprocessing.get_context("forkserver")
    ranks = [context.Process(target=_be, args=(folder, rank, num_workers, names)) for rank in range(num_workers)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(RANKS_S)
    *codes, last = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
    assert codes == [0] * (num_workers - 1)
    assert last == (-signal.SIGKILL if DEADLY in names else 0)
    reporting = {name: range(num_workers - (name == DEADLY)) for name in names}
    return {
        name: [json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in ranks]
        for name, ranks in reporting.items()
    }


def _be(folder: Path, rank: int, num_workers: int, names: list[str]) -> None:
    """Run the scenarios `names` one after the other, and write what each returns to `folder`, as NAME.RANK.json."""
    os.chdir(folder)  # for what the ranks share
    torch.set_num_threads(1)  # the ranks share the machine with each other
    peers = _replica(rank, num_workers, NoneConfig())
    peers.connect(f"file://{folder}/rendezvous")
    for name in names:
        (folder / f"{name}.{rank}.json").write_text(json.dumps(SCENARIOS[name](rank, num_workers)))
    peers.close()
