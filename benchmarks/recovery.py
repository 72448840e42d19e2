"""Measure how long training stops when one of two workers is killed, for 0.3 and for 25 million weights.

    python benchmarks/recovery.py

Goal: the start of a process, plus the time that network and storage need for the state.
"""

import os
import signal
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.optimizer.spec import AdamWConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.workloads import DigitsMlp, OwnWorkload, WorkloadConfig
from trainers.training.process_group import ProcessGroup
from trainers.training.repair import RepairingGroup
from trainers.workload import Workload

NUM_STEPS = 2
WORKLOADS = (DigitsMlp(), OwnWorkload(factory="recovery:Wide", path=str(Path(__file__).parent)))


class Wide(Workload):
    """A 1024-4096-4096-1024 perceptron (25.2 million weights) on noise."""

    batch_size = 8

    def __init__(self) -> None:
        noise = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(0))
        self.training = self.validation = TensorDataset(noise)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1024))

    def loss(self, model: nn.Module, batch: tuple[Tensor]) -> Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[0])


def measure(workload: WorkloadConfig) -> str:
    """Return what a kill after the first segment from a checkpoint costs, in words."""
    config = ReplicaConfig(workload=workload, optimizer=AdamWConfig(), exchange=ThresholdConfig(density=0.01))
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
    for workload in WORKLOADS:
        print(measure(workload))
