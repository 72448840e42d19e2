"""A searched value given by a segment trains like the same value fixed in the configuration."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.optimizers import build
from trainers.methods.optimizer.spec import AdamWConfig, ScheduleFreeSgdConfig, SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.workloads import DigitsMlp, OwnWorkload
from trainers.training.replica import Replica
from trainers.workload import WorkloadError
from trainers.workloads.digits import Digits

HERE = str(Path(__file__).parent)
PAIRS = {
    "sgd momentum": (SgdConfig(momentum=(0.5, 0.95)), SgdConfig(momentum=0.8), {"momentum": 0.8}),
    "sgd weight decay": (SgdConfig(weight_decay=(1e-4, 1e-1)), SgdConfig(weight_decay=0.01), {"weight_decay": 0.01}),
    "sgd nesterov": (SgdConfig(nesterov=(False, True)), SgdConfig(nesterov=True), {"nesterov": True}),
    "adamw momentum": (
        AdamWConfig(learning_rate=0.01, betas=((0.5, 0.95), 0.99)),
        AdamWConfig(learning_rate=0.01, betas=(0.8, 0.99)),
        {"momentum": 0.8},
    ),
    "schedule-free weight decay": (
        ScheduleFreeSgdConfig(weight_decay=(1e-4, 1e-1)),
        ScheduleFreeSgdConfig(weight_decay=0.01),
        {"weight_decay": 0.01},
    ),
}


def _alone(config):
    return Replica(config, 0, 1, device="cpu")


def _segment(num_steps=5, **values: Any):
    return Segment(num_steps=num_steps, learning_rate=0.05, **values)


@pytest.mark.parametrize("case", PAIRS)
def test_an_option_that_is_searched_trains_as_the_same_one_fixed(make_config, case):
    searched, fixed, values = PAIRS[case]

    losses = _alone(make_config(optimizer=searched)).run(_segment(**values)).losses

    assert losses == _alone(make_config(optimizer=fixed)).run(_segment()).losses


def test_a_batch_size_that_is_searched_trains_as_the_same_one_fixed(make_config):
    searched = _alone(make_config(workload=DigitsMlp(batch_size=(16, 64))))
    searched.snapshot("start")
    searched.run(_segment(batch_size=64))
    searched.restore("start")

    losses = searched.run(_segment(batch_size=24)).losses

    assert losses == _alone(make_config(workload=DigitsMlp(batch_size=24))).run(_segment()).losses


def test_a_rewound_run_repeats_with_other_values_in_between(make_config):
    replica = _alone(make_config(optimizer=AdamWConfig(betas=((0.5, 0.95), 0.99), weight_decay=(1e-3, 1.0))))
    replica.run(_segment(momentum=0.9, weight_decay=0.01))
    replica.snapshot("stage")
    expected = replica.run(_segment(momentum=0.9, weight_decay=0.01)).losses
    replica.restore("stage")
    replica.run(_segment(momentum=0.5, weight_decay=1.0))
    replica.restore("stage")

    assert replica.run(_segment(momentum=0.9, weight_decay=0.01)).losses == expected


def test_what_is_searched_must_be_given(make_config):
    replica = _alone(make_config(optimizer=SgdConfig(momentum=(0.5, 0.95))))

    with pytest.raises(ValueError, match="`momentum` must be given"):
        replica.run(_segment())


class Undecayed(Digits):
    """Its biases bring a weight decay of their own, and a momentum."""

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        biases = [each for each in model.parameters() if each.ndim == 1]
        return [
            {"params": [each for each in model.parameters() if each.ndim > 1]},
            {"params": biases, "weight_decay": 0.0, "momentum": 0.5},
        ]


def test_a_group_keeps_the_options_that_its_workload_gave_it():
    workload = Undecayed(DigitsMlp())
    torch.manual_seed(0)
    model = workload.model()
    config = SgdConfig(momentum=(0.5, 0.95), weight_decay=(1e-4, 1e-1), nesterov=(False, True))
    optimizer = build(config, workload, model)

    optimizer.set_options(_segment(momentum=0.8, weight_decay=0.02, nesterov=True))

    groups = optimizer.scalars()["groups"]
    assert [group["momentum"] for group in groups] == [0.8, 0.5]
    assert [group["weight_decay"] for group in groups] == [0.02, 0.0]
    assert [group["nesterov"] for group in groups] == [True, True]


def _own(name, **params):
    """One rank alone, with a model of the user's whose batch size is searched."""
    workload = OwnWorkload(factory=f"own_models:{name}", params=params, path=HERE, batch_size=(8, 16))
    return _alone(ReplicaConfig(workload=workload, optimizer=SgdConfig(), exchange=NoneConfig(), seed=3))


def test_loader_processes_follow_a_batch_size_as_it_changes():
    alone, loaded = _own("MapStyle"), _own("MapStyle", processes=1)
    sizes = (8, 8, 16)

    expected = [alone.run(_segment(2, batch_size=size)).losses for size in sizes]

    assert [loaded.run(_segment(2, batch_size=size)).losses for size in sizes] == expected


@pytest.mark.parametrize("processes", [0, 1])
def test_a_batch_that_the_data_are_too_few_for_is_refused_in_a_sentence(processes):
    replica = _own("MapStyle", processes=processes)

    with pytest.raises(WorkloadError, match=r"`batch_size` 5000 .* must be at most the [0-9]+ training samples"):
        replica.run(_segment(1, batch_size=5000))


def test_a_stream_has_no_batch_size_to_search():
    with pytest.raises(WorkloadError, match="stream"):
        _own("Streamed")
