import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import Subset

from trainers.exchange.node_links import NodeLinks
from trainers.exchange.topology import Topology
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.exchange.powersgd.spec import PowerSgdConfig
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.exchange.topk.spec import TopKConfig
from trainers.methods.optimizer.spec import MuonConfig, OptimizerConfig, ScheduleFreeSgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.levels import AccordionConfig
from trainers.spec.workloads import DigitsMlp
from trainers.training import equal_weights, model
from trainers.training.replica import Replica

MakeConfig = Callable[..., ReplicaConfig]
SEGMENT = Segment(num_steps=6, learning_rate=0.1)


def alone(config: ReplicaConfig) -> Replica:
    return Replica(config, 0, 1, device="cpu")


def test_every_restore_leads_to_the_same_losses(
    make_config: MakeConfig,
    optimizer_config: OptimizerConfig,
    exchange_config: NoneConfig | ThresholdConfig,
):
    replica = alone(make_config(optimizer=optimizer_config, exchange=exchange_config))
    replica.run(SEGMENT)
    replica.snapshot("stage")
    expected = replica.run(SEGMENT)

    runs = []
    for _ in range(2):
        replica.run(Segment(num_steps=3, learning_rate=0.7))
        replica.evaluate()
        replica.restore("stage")
        runs.append(replica.run(SEGMENT))

    assert [run.losses for run in runs] == [expected.losses] * 2
    assert [run.density for run in runs] == [expected.density] * 2


def test_nothing_is_left_of_an_exchange_that_other_nodes_took_the_place_of(make_config: MakeConfig):
    exchange = TopKConfig(density=0.1, levels=AccordionConfig(critical=0.5, epoch_steps=10))
    replica = Replica(make_config(exchange=exchange), 1, 2, device="cpu")
    before = weakref.ref(replica.state.own["exchange"])

    replica._settle(Topology.of(((0, 1),)))  # here this rank follows the other
    gc.collect()

    assert before() is None


def test_a_reset_replica_trains_like_a_fresh_one_and_keeps_its_slots(
    make_config: MakeConfig,
    optimizer_config: OptimizerConfig,
    exchange_config: NoneConfig | ThresholdConfig,
):
    replica = alone(make_config(optimizer=optimizer_config, exchange=exchange_config))
    first = replica.run(SEGMENT)
    replica.snapshot("stage")
    second = replica.run(SEGMENT)

    replica.reset()

    assert replica.run(SEGMENT).losses == first.losses
    replica.restore("stage")
    assert replica.run(SEGMENT).losses == second.losses


def test_a_reset_leaves_no_second_model_behind(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch):
    weights, build = list[weakref.ref[nn.Parameter]](), model.build

    def noted(*args: Any, **options: Any) -> nn.Module:
        made = build(*args, **options)
        weights.append(weakref.ref(made.get_parameter("0.weight")))
        return made

    monkeypatch.setattr(model, "build", noted)
    replica = alone(make_config())
    gc.disable()  # which runs when it will
    try:
        replica.reset()
    finally:
        gc.enable()

    assert [each() is not None for each in weights] == [True, False]
    assert weights[0]() is replica.model.get_parameter("0.weight")


def test_a_trained_replica_that_is_let_go_of_takes_its_model_with_it(make_config: MakeConfig):
    replica = alone(make_config())
    replica.run(SEGMENT)
    weight = weakref.ref(replica.model.get_parameter("0.weight"))

    del replica
    gc.collect()

    assert weight() is None


@pytest.mark.parametrize("num_samples", [1, 2, 4])
def test_ranks_share_out_the_validation_set_however_few_samples_it_has(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, num_samples: int
):
    monkeypatch.setattr(NodeLinks, "all_reduce_sum", lambda *_: None)  # each adds to the sum by itself
    monkeypatch.setattr(equal_weights, "differ", lambda *_: False)
    losses = []
    for rank, num_workers in [(0, 1), (0, 3), (1, 3), (2, 3)]:
        replica = Replica(make_config(), rank, num_workers, device="cpu")
        replica.workload.validation = Subset(replica.workload.validation, range(num_samples))
        losses.append(replica.evaluate().loss)

    assert sum(losses[1:]) == pytest.approx(losses[0])


@pytest.mark.parametrize(
    ("parts", "refuses"),
    [
        ({}, True),
        ({"optimizer": MuonConfig()}, False),
        ({"exchange": PowerSgdConfig()}, False),
    ],
    ids=["by entry", "muon", "powersgd"],
)
def test_weights_that_differ_are_compared_once_and_refused_only_where_steps_keep_roundings_small(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, parts: dict[str, Any], refuses: bool
):
    compared: list[bool] = []
    monkeypatch.setattr(NodeLinks, "all_reduce_sum", lambda links, words, _: words[-3].add_(1))  # another's checksum
    monkeypatch.setattr(equal_weights, "require_close", lambda *_, refuses: compared.append(refuses))
    replica = alone(make_config(**parts))

    for _ in range(3):
        replica.evaluate()

    assert compared == [refuses]


def test_evaluating_changes_no_bit_of_training(make_config: MakeConfig, optimizer_config: OptimizerConfig):
    watched, unwatched = (alone(make_config(optimizer=optimizer_config)) for _ in range(2))

    for replica in (watched, unwatched):
        replica.run(SEGMENT)
    watched.evaluate()

    assert watched.run(SEGMENT).losses == unwatched.run(SEGMENT).losses


def test_segments_in_pieces_train_like_one(make_config: MakeConfig, exchange_config: NoneConfig | ThresholdConfig):
    whole, pieces = (alone(make_config(exchange=exchange_config)) for _ in range(2))

    expected = whole.run(Segment(num_steps=9, learning_rate=0.1)).losses
    losses = [loss for n in (4, 4, 1) for loss in pieces.run(Segment(num_steps=n, learning_rate=0.1)).losses]

    assert tuple(losses) == expected


def test_accumulated_micro_batches_weigh_like_one_batch(make_config: MakeConfig):
    whole = alone(make_config(workload=DigitsMlp(batch_size=32)))
    split = alone(make_config(workload=DigitsMlp(batch_size=16), accumulate=2))

    results = [replica.run(SEGMENT) for replica in (whole, split)]

    assert results[0].losses == pytest.approx(results[1].losses, rel=1e-4)
    assert [result.batch_samples for result in results] == [32, 32]


def test_a_ramp_is_linear_and_ends_at_its_final_rate(make_config: MakeConfig):
    ramp, steps = (alone(make_config()) for _ in range(2))

    ramp.run(Segment(num_steps=3, learning_rate=0.1, final_learning_rate=0.3))
    for rate in (0.1, 0.2, 0.3):
        steps.run(Segment(num_steps=1, learning_rate=rate))

    assert ramp.run(SEGMENT).losses == pytest.approx(steps.run(SEGMENT).losses, rel=1e-6)


def test_a_diverging_step_is_not_applied(make_config: MakeConfig, exchange_config: NoneConfig | ThresholdConfig):
    replica = alone(make_config(exchange=exchange_config))
    replica.run(SEGMENT)
    weight = replica.model.get_parameter("0.weight")
    handle = weight.register_hook(lambda grad: grad * float("nan"))
    before = weight.detach().clone()

    result = replica.run(SEGMENT)
    handle.remove()

    assert (result.diverged, result.losses, replica.step) == (True, (), 6)
    assert torch.equal(weight, before)
    assert not replica.run(SEGMENT).diverged


def test_an_exploding_rate_ends_the_segment(make_config: MakeConfig):
    replica = alone(make_config())

    result = replica.run(Segment(num_steps=200, learning_rate=1e30))

    assert result.diverged
    assert len(result.losses) == len(result.step_seconds) == replica.step < 200


def test_dropping_to_bf16_changes_losses_slightly(make_config: MakeConfig):
    losses = [alone(make_config(precision=p)).run(SEGMENT).losses for p in ("float32", "bf16")]

    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)


def test_a_tight_clip_slows_training_down(make_config: MakeConfig):
    falls = []
    for clip in (None, 0.01):
        losses = alone(make_config(clip=clip)).run(Segment(num_steps=20, learning_rate=0.1)).losses
        falls.append(losses[0] - losses[-1])

    assert falls[0] > 5 * falls[1]


def test_training_learns_the_digits(make_config: MakeConfig, exchange_config: NoneConfig | ThresholdConfig):
    optimizer = ScheduleFreeSgdConfig(learning_rate=1.0)
    replica = alone(make_config(optimizer=optimizer, exchange=exchange_config))

    replica.run(Segment(num_steps=200, learning_rate=1.0))
    evaluation = replica.evaluate()

    assert evaluation.metrics["accuracy"] > 0.9
    assert evaluation.num_samples == 359


def test_training_leaves_the_global_generator_alone(make_config: MakeConfig):
    replica = alone(make_config())
    before = torch.random.get_rng_state()

    replica.run(SEGMENT)

    assert torch.equal(torch.random.get_rng_state(), before)


def test_exported_weights_reproduce_the_evaluation(
    make_config: MakeConfig, tmp_path: Path, optimizer_config: OptimizerConfig
):
    replica = alone(make_config(optimizer=optimizer_config))
    replica.run(Segment(num_steps=30, learning_rate=0.05))
    evaluation = replica.evaluate()

    replica.export(f"{tmp_path}/deep/weights.safetensors")
    model = replica.workload.model()
    model.load_state_dict(load_file(tmp_path / "deep" / "weights.safetensors"))
    batch = replica.workload.validation[torch.arange(359)]

    assert replica.workload.loss(model, batch).item() == pytest.approx(evaluation.loss, rel=1e-5)


@given(st.integers(2, 200), st.floats(1e-6, 10))
def test_a_rate_that_falls_to_0_ends_at_0_and_is_never_negative(num_steps: int, rate: float):
    segment = Segment(num_steps=num_steps, learning_rate=rate, final_learning_rate=0.0)

    rates = [segment.learning_rate_at(index) for index in range(num_steps)]

    assert rates[0] == rate and rates[-1] == 0.0
    assert rates == sorted(rates, reverse=True) and min(rates) == 0.0


def test_the_exchange_is_told_the_rate_of_the_update_warm_up_included(make_config):
    exchange = ThresholdConfig(density=0.02, lr_corrected=True)
    replica = Replica(make_config(exchange=exchange), 0, 1, device="cpu")  # five steps of warm-up

    replica.run(Segment(num_steps=3, learning_rate=0.1, level=0.02))

    assert replica.state.own["exchange"].scalars()["learning_rate"] == pytest.approx(0.1 * 3 / 5)
