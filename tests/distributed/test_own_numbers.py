"""Numbers that a workload returns with its loss, in groups of real ranks."""

from pathlib import Path

import pytest

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.workloads import OwnWorkload
from trainers.training.process_group import ProcessGroup
from trainers.workload import WorkloadError

MODELS = str(Path(__file__).parents[1] / "trainers")
SEGMENT = Segment(num_steps=3, learning_rate=0.05)


def group(factory: str) -> ProcessGroup:
    workload = OwnWorkload(factory=f"numbered_models:{factory}", path=MODELS)
    return ProcessGroup(ReplicaConfig(workload=workload, optimizer=SgdConfig(), exchange=NoneConfig()), 2, device="cpu")


def test_own_numbers_are_means_over_the_ranks_and_the_same_after_a_resume(tmp_path: Path) -> None:
    with group("Numbered") as ranks:
        ranks.run(SEGMENT)
        ranks.save(f"file://{tmp_path}/checkpoint")
        found = ranks.run(SEGMENT)
    with group("Numbered") as others:
        others.load(f"file://{tmp_path}/checkpoint")
        resumed = others.run(SEGMENT)

    assert found.own["twice"] == pytest.approx([2 * loss for loss in found.losses], rel=1e-6)
    assert resumed.own["twice"] == found.own["twice"]
    assert found.memory_bytes > 2**20


def test_ranks_that_return_different_numbers_are_refused() -> None:
    with group("ByRank") as ranks, pytest.raises(WorkloadError, match="same numbers on all workers"):
        ranks.run(SEGMENT)
