"""What one rank of a real gloo group does in a test; run as `python scenarios.py FOLDER RANK NUM_WORKERS NAME...`.

Each scenario returns what this rank saw, as JSON.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ddp_scenario import ddp
from exchange_bench import Bench, D, digest, gradients, on_nodes
from exchange_kinds import (
    DENSE,
    EVEN,
    averages,
    kinds,
    kinds_of_four,
    kinds_on_even_nodes,
    kinds_on_uneven_nodes,
    low_rank,
    pairs,
)

from trainers import cost
from trainers.checkpoint import Shard, commit_manifest
from trainers.config import (
    DigitsMlp,
    EmulateLink,
    ExchangeConfig,
    NoneConfig,
    ReplicaConfig,
    ScheduleFreeSgdConfig,
    SgdConfig,
    ThresholdConfig,
)
from trainers.exchange.ledger import Ledger
from trainers.exchange.pacing import LinkPacer
from trainers.exchange.wire import Wire
from trainers.exchange.wires import Wires, found
from trainers.replica import Replica
from trainers.segment import Segment

#: What replicas are told to train.
SEGMENT = Segment(num_steps=8, learning_rate=0.5)


def conservation(rank: int, num_workers: int) -> dict[str, Any]:
    """50 steps over changing levels, a dense one among them."""
    bench = Bench(ThresholdConfig(density=(0.01, 1.0)), num_workers)
    densities = [
        bench.step(gradients(rank, step), level).density
        for step, level in enumerate([0.02] * 15 + [0.1] * 15 + [1.0] * 3 + [0.05] * 17)
    ]
    return bench.report() | {"densities": densities}


def overflow(rank: int, num_workers: int) -> dict[str, Any]:
    """A payload that is far too small, every third step."""
    bench = Bench(ThresholdConfig(density=0.05, hold="run"), num_workers)
    sent, capacities = [], []
    for step in range(12):
        if step % 3 == 1:
            scalars = bench.exchange.scalars()
            selector = scalars["selector"] | {"capacities": [8, 8, 8]}
            bench.exchange.load_scalars(scalars | {"selector": selector})
        sent.append((bench.step(gradients(rank, step), 0.05).density or 0.0) * D)
        capacities.append(sum(bench.exchange.scalars()["selector"]["capacities"]))
    return bench.report() | {"sent": sent, "capacities": capacities}


def dense_limits(rank: int, num_workers: int) -> dict[str, Any]:
    """The bits of five aggregated gradients of which all is sent, by exchange."""
    return _dense_limits(rank, num_workers)


def dense_limits_on_nodes(rank: int, num_workers: int) -> dict[str, Any]:
    """The same for ranks that share nodes."""
    return _dense_limits(rank, num_workers, on_nodes(EVEN, rank))


def _dense_limits(rank: int, num_workers: int, wires: Wires | None = None) -> dict[str, Any]:
    benches = {"none": (Bench(NoneConfig(), num_workers, wires=wires), None)} | {
        name: (Bench(config, num_workers, wires=wires), level) for name, (config, level) in DENSE.items()
    }
    bits: dict[str, list[str]] = {name: [] for name in benches}
    for step in range(5):
        for name, (bench, level) in benches.items():
            bench.step(gradients(rank, step), level)
            bits[name].append(digest([bench.buffer.gradient]))
    return bits


def bad_gradient(rank: int, num_workers: int) -> dict[str, Any]:
    """One rank's gradient, or loss, is not finite at the fourth step, first or later of its level."""
    outcomes = {}
    for name, level, config in (
        ("none", 1.0, NoneConfig()),
        ("sparse", 0.02, ThresholdConfig(density=(0.01, 1.0))),
        ("calibrating", 0.3, ThresholdConfig(density=(0.01, 1.0))),
        ("dense", 1.0, ThresholdConfig(density=(0.01, 1.0))),
    ):
        bench = Bench(config, num_workers)
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
    wire = Wire(num_workers, LinkPacer(link), Ledger())
    message = torch.zeros(6250, dtype=torch.uint8)
    times = [time.monotonic()]
    if rank == 1:
        wire.send(message, 0, {"gradient": message.nbytes})
    elif rank == 0:
        wire.receive(message, 1)
    times.append(time.monotonic())
    wire.broadcast(message, 0, {"gradient": message.nbytes})
    times.append(time.monotonic())
    return {
        "times": times,
        "send": cost.point_to_point(message.nbytes, num_workers).seconds(link),
        "broadcast": cost.broadcast(message.nbytes, num_workers).seconds(link),
    }


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
    """Parameters after training, sparse and then dense."""
    replica = _replica(rank, num_workers, ThresholdConfig(density=(0.01, 1.0)))
    losses = [replica.run(Segment(num_steps=15, learning_rate=0.5, level=level)).losses for level in (0.02, 1.0)]
    return {"bits": digest(list(replica.model.parameters())), "losses": losses}


def replicas_on_nodes(rank: int, num_workers: int) -> dict[str, Any]:
    """Training on two nodes, gone on with by fresh ranks on the same nodes, and by ranks that are nodes themselves."""
    exchange, url = ThresholdConfig(density=0.05), f"{sys.argv[1]}/checkpoint"
    first, second = (_replica(rank, num_workers, exchange, per_node=2) for _ in range(2))
    moved, dense = _replica(rank, num_workers, exchange), _replica(rank, num_workers, NoneConfig(), per_node=2)
    for replica in (first, second, dense):
        replica._wires.join()
    first.run(SEGMENT)
    _write(first, url)
    for replica in (second, moved):
        replica.load(url)
    begun = {name: tensor.clone() for name, tensor in moved._exchange.tensors().items()}
    reports = [replica.run(SEGMENT) for replica in (first, second, moved, dense)]
    return {
        "losses": [each.losses for each in reports],
        "sent": sum(reports[-1].bytes_sent[0].values()),
        "dense": reports[-1].bytes_dense,
        "entries": dense.num_elements,
        "bits": [digest(list(replica.model.parameters())) for replica in (first, second, moved)],
        "begun anew": not any(bool(tensor.any()) for tensor in begun.values()),
        "found": found(num_workers, torch.device("cpu")).nodes,
    }


def _write(replica: Replica, url: str) -> None:
    """Complete a checkpoint, as a group does."""
    Path(f"{url}-{replica.rank}.json").write_text(json.dumps([each.model_dump() for each in replica.save(url)]))
    dist.barrier()
    if replica.rank == 0:
        written = [Path(f"{url}-{rank}.json").read_text() for rank in range(replica.num_workers)]
        shards = [Shard.model_validate(shard) for shards in written for shard in json.loads(shards)]
        commit_manifest(url, shards, replica.nodes)
    dist.barrier()


def _replica(rank: int, num_workers: int, exchange: ExchangeConfig, *, per_node: int = 1) -> Replica:
    optimizer = SgdConfig() if isinstance(exchange, NoneConfig) else ScheduleFreeSgdConfig(learning_rate=0.5)
    config = ReplicaConfig(workload=DigitsMlp(), optimizer=optimizer, exchange=exchange, workers_per_node=per_node)
    return Replica(config, rank, num_workers, device="cpu")


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        conservation,
        overflow,
        dense_limits,
        kinds,
        pairs,
        kinds_of_four,
        kinds_on_even_nodes,
        kinds_on_uneven_nodes,
        dense_limits_on_nodes,
        averages,
        low_rank,
        bad_gradient,
        paced_messages,
        early_stop,
        equal_parameters,
        replicas_on_nodes,
        ddp,
    )
}


def main(folder: Path, rank: int, num_workers: int, names: list[str]) -> None:
    torch.set_num_threads(1)  # the ranks share the machine with each other
    peers = _replica(rank, num_workers, NoneConfig())
    peers.connect(f"file://{folder}/rendezvous")
    results = {name: SCENARIOS[name](rank, num_workers) for name in names}
    (folder / f"{rank}.json").write_text(json.dumps(results))
    peers.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
