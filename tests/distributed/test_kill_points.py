"""All workers are killed at random moments of a run with checkpoints: it ends with the same weights."""

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.exchange.powersgd.spec import PowerSgdConfig
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.optimizer.spec import ScheduleFreeSgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.workloads import DigitsMlp, Mnist5kCnn, StdlibLm, WorkloadConfig
from trainers.training.call_results import WorkerLost
from trainers.training.checkpoint import MANIFEST
from trainers.training.process_group import ProcessGroup

MODELS: dict[str, WorkloadConfig] = {
    "mlp": DigitsMlp(batch_size=16),
    "conv net": Mnist5kCnn(batch_size=8),
    "transformer": StdlibLm(context=32, batch_size=4),
}
EXCHANGES: dict[str, tuple[ExchangeConfig, float | None]] = {
    "none": (NoneConfig(), None),
    "threshold": (ThresholdConfig(density=0.02), 0.02),
    "powersgd": (PowerSgdConfig(rank=2), 2),
}
CHUNKS, STEPS = 8, 5  # a checkpoint after every chunk


@contextmanager
def _killed_after(seconds: float, group: ProcessGroup) -> Iterator[None]:
    """Kill all workers `seconds` from now, unless the block has ended by then."""

    def kill() -> None:
        for pid in group.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    timer = threading.Timer(seconds, kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _complete(folder: Path) -> list[Path]:
    """Return the checkpoints that have all their files, oldest first."""
    return sorted(path.parent for path in folder.glob(f"*/{MANIFEST}"))


def _attempt(config: ReplicaConfig, level: float | None, folder: Path, *, kill_after_s: float) -> float:
    """Go on from the last checkpoint to the end, and export; returns the seconds that took.

    Raises WorkerLost when the workers are killed before that.
    """
    with ProcessGroup(config, 2, device="cpu") as group, _killed_after(kill_after_s, group):
        started, done = time.monotonic(), _complete(folder)
        if done:
            group.load(str(done[-1]))
        for chunk in range(len(done), CHUNKS):
            group.run(Segment(num_steps=STEPS, learning_rate=0.1, level=level))
            group.save(f"{folder}/{chunk:03d}")
        group.export(f"{folder}/weights.safetensors")
        return time.monotonic() - started


def _end_the_same(model: str, exchange: str, folder: Path, *, num_kills: int) -> None:
    kind, level = EXCHANGES[exchange]
    config = ReplicaConfig(workload=MODELS[model], optimizer=ScheduleFreeSgdConfig(), exchange=kind, seed=5)
    whole, killed = folder / "whole", folder / "killed"
    whole_s = _attempt(config, level, whole, kill_after_s=3600)
    moments = random.Random(f"{model} {exchange}")

    for _ in range(num_kills):
        left = 1 - len(_complete(killed)) / CHUNKS
        with suppress(WorkerLost):
            _attempt(config, level, killed, kill_after_s=moments.uniform(0, left * whole_s))
    _attempt(config, level, killed, kill_after_s=3600)

    assert (killed / "weights.safetensors").read_bytes() == (whole / "weights.safetensors").read_bytes()


def test_a_transformer_killed_at_a_random_moment_ends_with_the_same_weights(tmp_path: Path) -> None:
    _end_the_same("transformer", "threshold", tmp_path, num_kills=1)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("model", "exchange"), [*itertools.product(MODELS, EXCHANGES)])
def test_every_model_and_exchange_killed_at_ten_random_moments_ends_with_the_same_weights(
    model: str, exchange: str, tmp_path: Path
) -> None:
    _end_the_same(model, exchange, tmp_path, num_kills=10)
