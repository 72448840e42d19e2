"""Ranks share the batches that measure a new model's loss."""

import pytest

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.spec.workloads import DigitsMlp
from trainers.training.process_group import ProcessGroup
from trainers.training.replica import Replica

CONFIG = ReplicaConfig(workload=DigitsMlp(), optimizer=SgdConfig(), exchange=NoneConfig())


def test_the_sharpest_batch_of_any_rank_counts_and_the_mean_loss_of_all():
    alone = [Replica(CONFIG, rank, 2).landscape() for rank in range(2)]

    with ProcessGroup(CONFIG, 2, device="cpu") as group:
        found = group.landscape()
    assert found.sharpness == max(each.sharpness for each in alone)
    assert found.loss == pytest.approx(sum(each.loss for each in alone) / 2)
    assert alone[0] != alone[1]
