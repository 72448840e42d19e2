"""State that a model itself carries: BatchNorm's statistics, and the generator that dropout draws from."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from trainers.checkpoint import commit_manifest
from trainers.config import ReplicaConfig
from trainers.replica import Replica
from trainers.segment import Segment
from trainers.workloads import table
from trainers.workloads.digits import Digits

SEGMENT = Segment(num_steps=4, learning_rate=0.05)


class NormedDigits(Digits):
    """The digits with a model that has buffers and random masks."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(64, 32), nn.BatchNorm1d(32, momentum=0.5), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 10)
        )


@pytest.fixture
def replica(make_config: Callable[..., ReplicaConfig], monkeypatch: pytest.MonkeyPatch) -> Replica:
    monkeypatch.setitem(table.BUILTIN, "digits-mlp", NormedDigits)
    replica = Replica(make_config(), 0, 1, device="cpu")
    replica.run(SEGMENT)
    return replica


def statistics(replica: Replica) -> list[list[float]]:
    return [buffer.tolist() for buffer in replica.model.buffers()]


def test_a_restore_covers_statistics_and_random_masks(replica: Replica):
    replica.snapshot("stage")
    before = statistics(replica)
    losses = replica.run(SEGMENT).losses
    assert statistics(replica) != before

    replica.restore("stage")

    assert statistics(replica) == before
    assert replica.run(SEGMENT).losses == losses


def test_a_checkpoint_covers_statistics_and_random_masks(replica: Replica, tmp_path: Path):
    commit_manifest(str(tmp_path), replica.save(str(tmp_path)))
    losses = replica.run(SEGMENT).losses

    replica.load(str(tmp_path))

    assert replica.run(SEGMENT).losses == losses


def test_evaluating_uses_the_statistics_and_leaves_them_alone(replica: Replica):
    before = statistics(replica)

    first, again = replica.evaluate(), replica.evaluate()

    assert first == again
    assert statistics(replica) == before
    assert replica.model.training
    with torch.no_grad():
        replica.model.get_buffer("1.running_var").mul_(4.0)
    assert replica.evaluate().loss != first.loss
