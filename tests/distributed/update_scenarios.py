"""Scenarios of one rank whose exchange returns the step direction; each returns its findings."""

from typing import Any

import torch
from exchange_harness import SHAPES, Bench, Place, gradients
from torch import Tensor

from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.exchange.demo.spec import DemoConfig
from trainers.methods.exchange.dion.spec import DionConfig
from trainers.methods.exchange.onebit_adam.spec import OneBitAdamConfig
from trainers.methods.optimizer.spec import FromExchangeConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.workloads import DigitsMlp
from trainers.traffic import cost
from trainers.training.replica import Replica

FREEZE_STEPS, BLOCK = 3, 100
NUM_STEPS = 8
KINDS: dict[str, ExchangeConfig] = {
    "demo": DemoConfig(density=0.05, decay=0.9),
    "demo, dense": DemoConfig(density=1.0, decay=0.0),
    "dion": DionConfig(),
    "onebit_adam": OneBitAdamConfig(freeze_steps=FREEZE_STEPS, block=BLOCK),
}
TRAINED = ("demo", "dion", "onebit_adam")
#: Entries whose gradient is always zero.
IDLE = slice(100, 160)


def given(rank: int, step: int) -> Tensor:
    gradient = gradients(rank, step)
    gradient[IDLE] = 0
    return gradient


def updates(rank: int, num_workers: int) -> dict[str, Any]:
    """The directions of a few steps, what they left in this rank, and the bytes they sent; and replicas' losses."""
    place = Place(rank, num_workers)
    return {name: _steps(config, place) for name, config in KINDS.items()} | {
        "replicas": {name: _replica(KINDS[name], rank, num_workers) for name in TRAINED}
    }


def _steps(config: ExchangeConfig, place: Place) -> dict[str, Any]:
    bench, seen = Bench(config, place), []
    for step in range(NUM_STEPS):
        bench.connection.ledger.take()
        bench.step(given(place.rank, step), None)
        seen.append(
            {
                "direction": bench.buffer.gradient.tolist(),
                "state": {name: tensor.tolist() for name, tensor in bench.exchange.tensors().items()},
                "kept": bench.kept().tolist(),
                "bytes": sum(bench.connection.ledger.take().values()),
            }
        )
    predicted = cost.step_traffic(SHAPES, num_workers=place.num_workers, exchange=bench.config).bytes
    return {"steps": seen, "predicted": predicted}


def _replica(config: ExchangeConfig, rank: int, num_workers: int) -> dict[str, Any]:
    """Train, and train the last steps again from a snapshot amid them."""
    replica = Replica(
        ReplicaConfig(workload=DigitsMlp(), optimizer=FromExchangeConfig(learning_rate=3e-3), exchange=config),
        rank,
        num_workers,
        device="cpu",
    )
    first = replica.run(Segment(num_steps=10, learning_rate=3e-3))
    replica.snapshot("middle")
    ends = []
    for _ in range(2):
        last = replica.run(Segment(num_steps=10, learning_rate=3e-3))
        weights = torch.cat([parameter.detach().flatten() for parameter in replica.model.parameters()])
        ends.append((last.losses, weights.double().sum().item()))
        replica.restore("middle")
    return {"first": first.losses[0], "last": last.losses[-1], "ends": ends}
