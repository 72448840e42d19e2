"""Measure what the built-in workloads reach in 30 s, with constant values over an emulated link of 100 Mbit/s.

    python benchmarks/workloads.py [SECONDS]

Two workers of one core each train with a dense exchange, and with 2 % of the gradient. Workloads with missing data are
named and skipped.
"""

import os
import sys
import time

from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.optimizer.spec import OptimizerConfig, ScheduleFreeAdamWConfig, ScheduleFreeSgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.link import EmulateLink
from trainers.spec.workloads import (
    DiamondsMlp,
    DigitsMlp,
    FashionConv,
    FlightsEmbedding,
    MinilmLora,
    Mnist5kCnn,
    StdlibLm,
    WorkloadConfig,
)
from trainers.training.group import Group
from trainers.training.process_group import ProcessGroup
from trainers.workload import WorkloadError
from trainers.workloads import registry

SGD = ScheduleFreeSgdConfig(learning_rate=0.1)
ADAMW = ScheduleFreeAdamWConfig(learning_rate=0.003)
LINK = EmulateLink(mbps=100, latency_ms=1)
DENSITY = 0.02
EXCHANGES: dict[str, ExchangeConfig] = {"dense": NoneConfig(), "2 %": ThresholdConfig(density=DENSITY)}
RUNS: list[tuple[WorkloadConfig, OptimizerConfig]] = [
    (DigitsMlp(), SGD),
    (Mnist5kCnn(), SGD),
    (FashionConv(size="medium"), SGD),
    (StdlibLm(), ADAMW),
    (StdlibLm(size="1M"), ADAMW),
    (DiamondsMlp(), SGD),
    (FlightsEmbedding(), ADAMW),
    (MinilmLora(), ADAMW),
]
#: Longest segment: after it the clock is looked at.
SEGMENT_STEPS = 100


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    for workload, optimizer in RUNS:
        try:
            registry.build(workload)
        except WorkloadError as error:
            print(f"{workload.kind}: {error}")
            continue
        for name, exchange in EXCHANGES.items():
            measure(name, ReplicaConfig(workload=workload, optimizer=optimizer, exchange=exchange, link=LINK), seconds)


def measure(exchange: str, config: ReplicaConfig, seconds: float) -> None:
    """Train for `seconds` after a warm-up, and print steps, loss and metrics."""
    with ProcessGroup(config, 2, device="cpu") as group:
        group.snapshot("start")
        run(group, 3)
        group.restore("start")
        num_steps = train(group, seconds)
        result = group.evaluate()
    what = f"{config.workload.kind} {getattr(config.workload, 'size', '')}"
    metrics = ", ".join(f"{name} {value:.3f}" for name, value in result.metrics.items())
    load = os.getloadavg()[0]
    print(
        f"{what:<20} {exchange:<6} {num_steps:5d} steps  loss {result.loss:.3f}  {metrics}  (load {load:.1f})",
        flush=True,
    )


def train(group: Group, seconds: float) -> int:
    """Return the number of steps taken; the last one may pass the end."""
    end = time.monotonic() + seconds
    num_steps, segment_steps = 0, 1
    while (left := end - time.monotonic()) > 0:
        step_s = run(group, segment_steps)
        num_steps += segment_steps
        segment_steps = max(1, min(SEGMENT_STEPS, int((left - segment_steps * step_s) / step_s)))
    return num_steps


def run(group: Group, num_steps: int) -> float:
    """Take the steps, and return the seconds of one."""
    result = group.run(Segment(num_steps=num_steps, learning_rate=group.config.optimizer.learning_rate, level=DENSITY))
    return sum(result.step_seconds) / num_steps


if __name__ == "__main__":
    main()
