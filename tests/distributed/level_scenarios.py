"""Scenarios of one rank in a real group while levels change; each returns its findings as JSON."""

from pathlib import Path
from typing import Any

import torch.distributed as dist
from exchange_harness import Bench, Place, digest, gradients
from exchange_kinds import UNEVEN
from sync_harness import SyncBench
from sync_scenarios import write_checkpoint

from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.exchange.dgc.spec import DgcConfig
from trainers.methods.exchange.powersgd.spec import PowerSgdConfig
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.exchange.topk.spec import TopKConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.accordion_batch.spec import AccordionBatchConfig
from trainers.segment import Segment
from trainers.spec.levels import (
    AccordionConfig,
    AffineCost,
    CalibratedConfig,
    CatConfig,
    PacketCost,
    WarmupConfig,
)
from trainers.spec.link import EmulateLink
from trainers.spec.workloads import DigitsMlp
from trainers.training.replica import Replica

#: Two steps are an epoch, so 12 steps have comparisons at the ends of the second, sixth and tenth.
ACCORDION = {"eta": 0.45, "interval": 2, "epoch_steps": 2}
NUM_STEPS = 12
CHECKS = (1, 5, 9)
#: The rate falls in this step.
DECAY = 7
RATES = (*[0.1] * DECAY, *[0.05] * (NUM_STEPS + 2 - DECAY))

LEVELS: dict[str, ExchangeConfig] = {
    "accordion, powersgd": PowerSgdConfig(rank=1, values="float32", levels=AccordionConfig(critical=3, **ACCORDION)),
    "accordion, topk by layer": TopKConfig(
        density=0.05, scope="layer", levels=AccordionConfig(critical=0.3, **ACCORDION)
    ),
    "accordion, topk": TopKConfig(density=0.05, levels=AccordionConfig(critical=1.0, **ACCORDION)),
    "accordion, threshold": ThresholdConfig(density=0.05, levels=AccordionConfig(critical=0.3, **ACCORDION)),
    "accordion, absolute": ThresholdConfig(
        search="absolute", threshold=3.0, levels=AccordionConfig(critical=1.0, **ACCORDION)
    ),
    "warm-up, dgc": DgcConfig(density=0.05, levels=WarmupConfig(steps=6, stages=3)),
    "calibrated": ThresholdConfig(density=0.05, hold="run", levels=CalibratedConfig()),
    "cat, packets": TopKConfig(density=0.3, levels=CatConfig(cost=PacketCost(packet_bytes=64))),
    "cat, signs": TopKConfig(density=0.3, values="sign", levels=CatConfig(cost=AffineCost(fixed=500))),
    "cat, measured": TopKConfig(density=0.3, levels=CatConfig()),
    "cat, drawn": TopKConfig(density=0.3, memory="none", levels=CatConfig(cost=AffineCost(fixed=50), variant="drawn")),
}
TRAINED: dict[str, dict[str, Any]] = {
    "accordion": {
        "exchange": TopKConfig(
            density=0.02, scope="layer", levels=AccordionConfig(critical=0.2, interval=1, epoch_steps=3)
        )
    },
    "cat": {"exchange": TopKConfig(density=0.1, levels=CatConfig())},
    "batch": {
        "exchange": TopKConfig(density=0.1),
        "sync": AccordionBatchConfig(factor=3, interval=1, epoch_steps=2, eta=10.0),
    },
}
#: Epochs of two steps; gradients shrink by a fifth in one.
BATCH = AccordionBatchConfig(factor=3, interval=1, epoch_steps=2)
BATCH_RATES = (0.1,) * 10 + (0.05,) * 5
SEGMENT = Segment(num_steps=7, learning_rate=0.1)


def levels(rank: int, num_workers: int) -> dict[str, Any]:
    """Steps under each policy, and replicas that are resumed."""
    return {
        "steps": _policies(Place(rank, num_workers)),
        "resumed": {name: _resumed(name, rank, num_workers) for name in TRAINED},
    }


def levels_in_pairs(rank: int, num_workers: int) -> dict[str, Any]:
    """Steps of pairs of the ranks under each policy."""
    groups = [dist.new_group([first, first + 1]) for first in range(0, num_workers, 2)]
    return _policies(Place(rank % 2, 2, groups[rank // 2]))


def _policies(place: Place) -> dict[str, Any]:
    return {name: _steps(config, place) for name, config in LEVELS.items()}


def batches(rank: int, num_workers: int) -> dict[str, Any]:
    """Where this rank is after each step of batches that grow, what it sent, and whether a restored state goes on."""
    return _batches(Place(rank, num_workers))


def batches_in_pairs(rank: int, num_workers: int) -> dict[str, Any]:
    """The same for pairs of the ranks."""
    groups = [dist.new_group([first, first + 1]) for first in range(0, num_workers, 2)]
    return _batches(Place(rank % 2, 2, groups[rank // 2]))


def batches_on_nodes(rank: int, num_workers: int) -> dict[str, Any]:
    """The same for ranks that share nodes of different sizes."""
    return _batches(Place.on_nodes(rank, UNEVEN))


def _batches(place: Place) -> dict[str, Any]:
    bench, first, other = (SyncBench(BATCH, place) for _ in range(3))
    sent = []
    for rate in BATCH_RATES:
        bench.step(rate)
        sent.append(bench.node_links.between.ledger.take().get("gradient", 0))
    first.run(BATCH_RATES[:8])
    other.load(first.state())
    ends = [each.run(BATCH_RATES[8:]) for each in (first, other)]
    return {"trace": SyncBench(BATCH, place).run(BATCH_RATES), "sent": sent, "restored": ends[0] == ends[1]}


def _steps(config: ExchangeConfig, place: Place) -> dict[str, Any]:
    """What each step has sent and left, and two more steps, on this bench and on one that takes over its state."""
    bench, other = Bench(config, place), Bench(config, place)
    bits, control, decided, sent = [], [], [], []
    for step in range(NUM_STEPS):
        bench.node_links.between.ledger.take()
        outcome = bench.step(gradients(place.rank, step), None, rate=RATES[step])
        taken = bench.node_links.between.ledger.take()
        sent.append(sum(taken.values()))
        control.append(taken["control"])
        bits.append(digest([bench.buffer.gradient]))
        policy = bench.exchange.scalars().get("levels", {})
        decided.append(policy.get("regimes", {}).get("critical"))
        assert not outcome.diverged
    plain = Bench(config, place)
    for step in range(NUM_STEPS):  # at one rate, for what is sent is in units of the gradient
        plain.step(gradients(place.rank, step), None)
    state = bench.state()
    other.load(state)
    ends = []
    for each in (bench, other):
        for step in (NUM_STEPS, NUM_STEPS + 1):
            each.step(gradients(place.rank, step), None, rate=RATES[step])
        ends.append(digest([each.buffer.gradient, *each.exchange.tensors().values()]))
    return {
        "bits": bits,
        "critical": decided,
        "sent": sent,
        "control": control,
        "lost": plain.lost(),
        "restored": ends[0] == ends[1],
        "selector": state[1].get("selector"),
        "threshold": bench.exchange.threshold,
    }


def _resumed(name: str, rank: int, num_workers: int) -> dict[str, Any]:
    """A replica that trains, is saved, and trains on; rewound, once more; and another one from what was saved."""
    first, second = (_replica(name, rank, num_workers) for _ in range(2))
    first.run(SEGMENT)
    first.snapshot("stage")
    url = f"{Path.cwd()}/levels-{name}"
    write_checkpoint(first, url)
    runs = [first.run(SEGMENT)]
    first.restore("stage")
    runs.append(first.run(SEGMENT))
    second.load(url)
    runs.append(second.run(SEGMENT))
    return {
        "losses": [run.losses for run in runs],
        "sent": [run.bytes_sent for run in runs],
        "bits": [digest(list(replica.model.parameters())) for replica in (first, second)],
    }


def _replica(name: str, rank: int, num_workers: int) -> Replica:
    config = ReplicaConfig(
        workload=DigitsMlp(),
        optimizer=SgdConfig(),
        link=EmulateLink(mbps=100_000, latency_ms=0.01),
        **TRAINED[name],
    )
    return Replica(config, rank, num_workers, device="cpu")
