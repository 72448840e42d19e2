"""Single-worker training follows from the state alone, on any rank, and sends nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainers.methods.activations.dropit.spec import DropItConfig
from trainers.methods.blocks.jointspar.spec import JointSparConfig
from trainers.methods.exchange.auto.spec import AutoConfig
from trainers.methods.exchange.cser.spec import CserConfig
from trainers.methods.exchange.demo.spec import DemoConfig
from trainers.methods.exchange.dgc.spec import DgcConfig
from trainers.methods.exchange.powersgd.spec import PowerSgdConfig
from trainers.methods.exchange.qsgd.spec import QsgdConfig
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.optimizer.spec import FromExchangeConfig, OptimizerConfig, SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.local_sgd.spec import LocalSgdConfig
from trainers.segment import Segment
from trainers.spec.partition import ByLabelPartition
from trainers.spec.workloads import OwnWorkload
from trainers.training.replica import Replica

MakeConfig = Callable[..., ReplicaConfig]
SEGMENT = Segment(num_steps=4, learning_rate=0.05)
#: What depends on the machine, not on the steps.
OF_NO_MACHINE: dict[str, Any] = {"step_seconds": (), "waits": (), "times": None, "memory_bytes": 0}
RUNS: dict[str, dict[str, Any]] = {
    "threshold": {"exchange": ThresholdConfig(density=0.02)},
    "powersgd": {"exchange": PowerSgdConfig(rank=2)},
    "qsgd": {"exchange": QsgdConfig()},
    "micro-batches": {"accumulate": 2, "clip": 1.0},
    "dropped activations": {"activations": DropItConfig(gamma=0.5)},
    "workers of one node": {"workers_per_node": 3},
}


def own(name: str) -> OwnWorkload:
    return OwnWorkload(factory=f"own_models:{name}", path=str(Path(__file__).parent))


def alone(config: ReplicaConfig, rank: int, segment: Segment = SEGMENT) -> tuple[Any, ...]:
    """Return what rank `rank` of 3 measures in two segments of which the second begins later."""
    replica = Replica(config, rank, 3, device="cpu")
    results = [replica.run_alone(segment) for _ in range(2)]
    return tuple(each.model_copy(update=OF_NO_MACHINE) for each in results)


@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS.keys())
def test_what_a_worker_trains_alone_does_not_depend_on_its_rank(make_config: MakeConfig, changes: dict[str, Any]):
    config = make_config(**changes)

    first, *others = [alone(config, rank) for rank in range(3)]

    assert others == [first, first]
    assert [len(result.losses) for result in first] == [4, 4]


def test_it_does_not_under_any_optimizer(make_config: MakeConfig, optimizer_config: OptimizerConfig):
    config = make_config(optimizer=optimizer_config)

    assert alone(config, 2) == alone(config, 0)


@pytest.mark.parametrize("name", ["Mixed", "NoisyTensors", "Pretrained", "MapStyle", "Streamed"])
def test_it_does_not_where_batches_or_losses_are_drawn_at_random(make_config: MakeConfig, name: str):
    config = make_config(workload=own(name))

    assert [each.losses for each in alone(config, 2)] == [each.losses for each in alone(config, 0)]


def test_a_worker_alone_sends_nothing_and_spares_nobody_anything(make_config: MakeConfig):
    for result in alone(make_config(exchange=ThresholdConfig(density=0.02)), 1):
        assert result.bytes_sent == ({},) and result.bytes_within == ({},)
        assert result.bytes_dense == 0


@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS.keys())
def test_a_worker_that_trained_alone_goes_back_to_the_same_bits(make_config: MakeConfig, changes: dict[str, Any]):
    one_node = {"workers_per_node": 1}  # a single rank has no others beside it
    replica = Replica(make_config(**changes | one_node), 0, 1, device="cpu")
    replica.run(SEGMENT)
    replica.snapshot("stage")
    expected = replica.run(SEGMENT)

    replica.restore("stage")
    replica.run_alone(Segment(num_steps=5, learning_rate=0.7))
    replica.restore("stage")
    again = replica.run(SEGMENT)

    assert again.model_copy(update=OF_NO_MACHINE) == expected.model_copy(update=OF_NO_MACHINE)


def test_a_rate_that_is_far_too_high_ends_the_segment_of_its_worker(make_config: MakeConfig):
    [result, _] = alone(make_config(), 1, Segment(num_steps=40, learning_rate=1e6))

    assert result.diverged and len(result.losses) < 40


ALIKE: dict[str, dict[str, Any]] = {"dense": {}, **RUNS}
UNLIKE: dict[str, dict[str, Any]] = {
    "data of their own": {"partition": ByLabelPartition()},
    "local updates": {"sync": LocalSgdConfig(period=4)},
    "drifting parameters": {"exchange": CserConfig(period=4), "optimizer": SgdConfig(momentum=0.0)},
    "drawn blocks": {"blocks": JointSparConfig(share=0.5)},
    "exchanges that compete": {"exchange": AutoConfig()},
    "an exchange that makes the update": {"exchange": DemoConfig(), "optimizer": FromExchangeConfig()},
    "an exchange with the momentum": {"exchange": DgcConfig(), "optimizer": SgdConfig(momentum=0.0)},
}


@pytest.mark.parametrize("changes", ALIKE.values(), ids=ALIKE.keys())
def test_as_many_values_as_workers_are_tried_at_a_time(make_config: MakeConfig, changes: dict[str, Any]):
    assert [make_config(**changes).num_alone(count) for count in (1, 3)] == [1, 3]


@pytest.mark.parametrize("changes", UNLIKE.values(), ids=UNLIKE.keys())
def test_one_at_a_time_where_a_worker_alone_shows_little_of_the_run(make_config: MakeConfig, changes: dict[str, Any]):
    assert make_config(**changes).num_alone(3) == 1
