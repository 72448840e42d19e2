"""Ranks share the batches that tell how sharp a new model is."""

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.spec.replica import ReplicaConfig
from trainers.spec.workloads import DigitsMlp
from trainers.training.process_group import ProcessGroup
from trainers.training.replica import Replica

CONFIG = ReplicaConfig(workload=DigitsMlp(), optimizer=SgdConfig(), exchange=NoneConfig())


def test_the_sharpest_batch_of_any_rank_counts():
    alone = [Replica(CONFIG, rank, 2).sharpness() for rank in range(2)]

    with ProcessGroup(CONFIG, 2, device="cpu") as group:
        assert group.sharpness() == max(alone)
    assert alone[0] != alone[1]
