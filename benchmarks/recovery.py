"""How long training stands still when one of two workers is killed: for 0.3 and for 25 million weights.

    python benchmarks/recovery.py

Goal: the start of a process, plus what the network and the storage need for the state.
"""

import os
import signal
import tempfile

import torch
from torch import Tensor, nn

from trainers.config import AdamWConfig, DigitsMlp, ReplicaConfig, ThresholdConfig
from trainers.group import ProcessGroup
from trainers.repair import RepairingGroup
from trainers.segment import Segment
from trainers.workload import TensorData
from trainers.workloads import table

NUM_STEPS = 2
WIDE_BATCH = 8


class Wide:
    """A 1024-4096-4096-1024 perceptron (25.2 million weights) on noise."""

    batch_size = WIDE_BATCH

    def __init__(self) -> None:
        noise = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(0))
        self.training = self.validation = TensorData(noise, noise)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1024))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs, targets)

    def num_correct(self, outputs: Tensor, targets: Tensor) -> None:
        return None


built_in = table.build
# Spawned workers import this file as well, and so know the wide one too.
table.build = lambda config: Wide() if config.batch_size == WIDE_BATCH else built_in(config)


def measure(batch_size: int) -> str:
    """Return what a kill after the first segment from a checkpoint costs, in words."""
    config = ReplicaConfig(
        workload=DigitsMlp(batch_size=batch_size), optimizer=AdamWConfig(), exchange=ThresholdConfig(density=0.01)
    )
    segment = Segment(num_steps=NUM_STEPS, learning_rate=1e-4)
    inner = ProcessGroup(config, 2, device="cpu")
    with RepairingGroup(inner) as group, tempfile.TemporaryDirectory() as folder:
        group.run(segment)
        group.save(f"file://{folder}/checkpoint")
        group.snapshot("stage")
        replayed_s = sum(group.run(segment).step_seconds)
        os.kill(inner.pids[1], signal.SIGKILL)
        group.run(segment)
        spent = group.recovery
    return (
        f"{inner.num_elements / 1e6:5.1f} M weights: {spent.seconds:.1f} s, {NUM_STEPS} replayed steps of about "
        f"{replayed_s / NUM_STEPS:.2f} s and {spent.bytes / NUM_STEPS / 1e6:.1f} MB per worker included"
    )


if __name__ == "__main__":
    for batch_size in (32, WIDE_BATCH):
        print(measure(batch_size))
