"""Optimizers that compete, on two real ranks: each trains as it does alone, whatever was probed before."""

from collections.abc import Iterator

import pytest

from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.optimizer.spec import (
    AutoOptimizerConfig,
    JobOptimizer,
    MuonConfig,
    ScheduleFreePlusConfig,
    ScheduleFreeSgdConfig,
)
from trainers.segment import Segment
from trainers.spec.replica import ReplicaConfig
from trainers.spec.workloads import DigitsMlp
from trainers.training.group import Group, ProcessGroup

OPTIONS = (ScheduleFreeSgdConfig(warmup_steps=3), MuonConfig(weight_decay=0.1), ScheduleFreePlusConfig(warmup_steps=3))
RATES = {"schedulefree_sgd": 0.5, "muon": 0.01, "schedulefree_plus": 0.5}


def _config(optimizer: JobOptimizer) -> ReplicaConfig:
    return ReplicaConfig(workload=DigitsMlp(), optimizer=optimizer, exchange=ThresholdConfig(density=0.05), clip=5.0)


def _trained(group: Group, kind: str, num_steps: int = 6) -> tuple[tuple[float, ...], float]:
    segment = Segment(num_steps=num_steps, learning_rate=RATES[kind], level=0.05, optimizer=kind)
    return group.run(segment).losses, group.evaluate().loss


@pytest.fixture(scope="module")
def competing() -> Iterator[Group]:
    with ProcessGroup(_config(AutoOptimizerConfig(options=OPTIONS)), 2, device="cpu") as group:
        group.snapshot("start")
        yield group


@pytest.mark.parametrize("option", OPTIONS, ids=list(RATES))
def test_two_ranks_train_with_one_as_if_there_were_no_others(competing: Group, option: JobOptimizer):
    for kind in RATES:
        competing.restore("start")
        _trained(competing, kind)
    competing.restore("start")
    ours = _trained(competing, option.kind)

    with ProcessGroup(_config(option), 2, device="cpu") as alone:
        assert ours == _trained(alone, option.kind)


@pytest.mark.parametrize("kind", ["muon", "schedulefree_plus"])
def test_two_ranks_go_on_from_a_checkpoint_with_the_one_in_force(competing: Group, kind: str, tmp_path_factory):
    url = str(tmp_path_factory.mktemp("checkpoint"))
    competing.restore("start")
    _trained(competing, kind)
    competing.save(url)
    straight_on = _trained(competing, kind)

    competing.restore("start")
    competing.load(url)

    assert _trained(competing, kind) == straight_on
