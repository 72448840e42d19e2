"""Local updates on one rank, and their pure functions."""

import io
import json
import math
from functools import partial
from itertools import product
from typing import get_type_hints

import pytest
import torch
from hypothesis import given, strategies as st

from trainers.methods import registry
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.exchange.topk.spec import TopKConfig
from trainers.methods.optimizer.spec import AdamWConfig, ScheduleFreeSgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.cocod_sgd.spec import CocodSgdConfig
from trainers.methods.sync.diloco.outer import OuterSgd
from trainers.methods.sync.diloco.spec import DiLoCoConfig
from trainers.methods.sync.every_step.spec import EveryStepConfig
from trainers.methods.sync.local_sgd.spec import LocalSgdConfig
from trainers.methods.sync.policy import PolicyBase, Update
from trainers.methods.sync.shared.screen import Outliers
from trainers.methods.sync.stl_sgd.policy import Stage, period_at, stage_at
from trainers.methods.sync.stl_sgd.spec import StlSgdConfig
from trainers.methods.sync.streaming_diloco.fragments import divide
from trainers.methods.sync.streaming_diloco.policy import Arrived
from trainers.methods.sync.streaming_diloco.spec import StreamingDiLoCoConfig
from trainers.methods.sync.vrl_sgd.spec import VrlSgdConfig
from trainers.segment import Segment, SegmentResult
from trainers.snapshot import load_scalars, scalars_of
from trainers.spec.method import Method
from trainers.spec.workloads import Mnist5kCnn
from trainers.traffic import collectives, cost
from trainers.training.course import is_trained
from trainers.training.replica import Replica
from trainers.training.segment_results import merge
from trainers.training.stopwatch import RoundWait
from trainers.workload import WorkloadError

SEGMENT = Segment(num_steps=6, learning_rate=0.1)
SHAPES = ((100, 10), (24,))
SCREENED = {"max_z": 3.0, "warmup_averages": 3}


def _stages(config: StlSgdConfig, count: int) -> list[Stage]:
    stages = [stage_at(0, config)]
    while len(stages) < count:
        stages.append(stage_at(stages[-1].end, config))
    return stages


@pytest.mark.parametrize("method", registry.of("sync"), ids=lambda method: method.kind)
def test_a_configuration_says_whether_its_policy_sets_rates_or_gradients(method: Method):
    loaded = method.load()
    policy = loaded if isinstance(loaded, type) else get_type_hints(loaded)["return"]

    sets = issubclass(policy, PolicyBase) and any(
        getattr(policy, name) is not getattr(PolicyBase, name) for name in ("learning_rate", "amend")
    )
    assert method.config.sets_rates == sets


@pytest.mark.parametrize("config", [StlSgdConfig(first_stage=7), StlSgdConfig(first_stage=7, growth="linear", gamma=1)])
def test_stages_of_stl_follow_each_other_and_rate_times_length_is_constant(config: StlSgdConfig):
    stages = _stages(config, 6)

    assert [stage.start for stage in stages] == [0, *(stage.end for stage in stages[:-1])]
    assert {(stage.end - stage.start) / stage.factor for stage in stages} == {7}
    for stage in stages:
        assert stage_at(stage.start, config) == stage_at(stage.end - 1, config) == stage


@pytest.mark.parametrize("growth", ["double", "linear"])
def test_rate_times_period_of_stl_is_constant(growth):
    for stage in _stages(StlSgdConfig(first_stage=3, growth=growth, gamma=1.0), 9):
        assert period_at(stage, 5, is_iid=True) / stage.factor == 5


@pytest.mark.parametrize("growth", ["double", "linear"])
def test_rate_times_the_square_of_the_period_of_stl_is_as_constant_as_whole_steps_allow_where_data_differ(growth):
    stages = _stages(StlSgdConfig(first_stage=3, growth=growth, gamma=1.0), 9)
    periods = [period_at(stage, 5, is_iid=False) for stage in stages]

    for stage, period in zip(stages, periods, strict=True):
        assert period**2 / stage.factor <= 25 < (period + 1) ** 2 / stage.factor
    exact = [period for stage, period in zip(stages, periods, strict=True) if period**2 == 25 * stage.factor]
    assert exact == ([5, 10, 20, 40, 80] if growth == "double" else [5, 10, 15])


def _replica(make_config, **changes) -> Replica:
    return Replica(make_config(**changes), 0, 1, device="cpu")


#: On one rank a plain average is no event.
MOMENTUM = [partial(LocalSgdConfig, slow_momentum=0.5), partial(DiLoCoConfig, outer_momentum=0.5)]


@pytest.mark.parametrize("config", MOMENTUM, ids=["local_sgd", "diloco"])
def test_a_period_that_is_searched_trains_as_the_same_one_fixed(make_config, config):
    searched = _replica(make_config, sync=config(period=(1, 16)))
    fixed = _replica(make_config, sync=config(period=3))

    losses = searched.run(SEGMENT.model_copy(update={"period": 3})).losses

    assert losses == fixed.run(SEGMENT).losses
    assert losses != _replica(make_config, sync=config(period=2)).run(SEGMENT).losses


def test_an_outer_optimizer_that_is_searched_trains_as_the_same_one_fixed(make_config):
    searched = DiLoCoConfig(period=2, outer_learning_rate=(0.3, 1.0), outer_momentum=(0.5, 0.9))
    fixed = DiLoCoConfig(period=2, outer_learning_rate=0.7, outer_momentum=0.6)
    segment = SEGMENT.model_copy(update={"outer_learning_rate": 0.7, "outer_momentum": 0.6})

    losses = _replica(make_config, sync=searched).run(segment).losses

    assert losses == _replica(make_config, sync=fixed).run(SEGMENT).losses
    with pytest.raises(ValueError, match="`outer_learning_rate` must be given"):
        _replica(make_config, sync=searched).run(SEGMENT)


def test_an_outer_momentum_that_is_set_to_0_is_none(make_config):
    given = _replica(make_config, sync=DiLoCoConfig(period=2, outer_momentum=0.9))
    plain = _replica(make_config, sync=DiLoCoConfig(period=2, outer_learning_rate=0.7))

    losses = given.run(SEGMENT.model_copy(update={"outer_momentum": 0.0, "outer_learning_rate": 0.7})).losses

    assert losses == plain.run(SEGMENT).losses


def test_an_outer_momentum_of_0_forgets_the_steps_before():
    outer, means = OuterSgd(DiLoCoConfig(outer_momentum=0.9), torch.zeros(3)), torch.randn(3, 3)
    for number, momentum in enumerate((0.9, 0.0, 0.9)):
        step = outer.step(means[number], Update(number, 0.1, None, None, 1.0, momentum))

    torch.testing.assert_close(step, means[2] + 0.9 * (means[2] + 0.9 * means[1]))


def test_an_outer_momentum_of_0_forgets_a_velocity_that_is_not_finite():
    outer, mean = OuterSgd(DiLoCoConfig(outer_momentum=0.9), torch.zeros(3)), torch.ones(3)
    outer.velocity.fill_(torch.inf)

    assert outer.step(mean, Update(0, 0.1, None, None, 0.5, 0.0)).tolist() == [0.5] * 3
    assert outer.velocity.tolist() == mean.tolist()


def test_a_period_that_is_searched_must_be_given(make_config):
    with pytest.raises(ValueError, match="`period` must be given"):
        _replica(make_config, sync=LocalSgdConfig(period=(1, 16))).run(SEGMENT)


@pytest.mark.parametrize("config", MOMENTUM, ids=["local_sgd", "diloco"])
def test_apart_with_schedule_free_both_iterates_are_averaged(make_config, config):
    replica = _replica(make_config, optimizer=ScheduleFreeSgdConfig(), sync=config(period=2))
    replica.run(SEGMENT)

    anchor = replica.state.own["sync"].tensors()["anchor"]
    live = torch.cat([tensor.detach().flatten() for tensor in replica.parts.optimizer.iterate()])

    assert len(anchor) == 2 * collectives.num_elements(replica.shapes)
    assert torch.equal(anchor, live)


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=60), st.integers(1, 20))
def test_every_tensor_is_in_one_fragment_and_fragments_differ_by_a_tensor_at_most(sizes: list[int], count: int):
    fragments = divide(sizes, count)

    assert sorted(index for fragment in fragments for index in fragment) == list(range(len(sizes)))
    assert all(fragment == sorted(fragment) for fragment in fragments)
    totals = [sum(sizes[index] for index in fragment) for fragment in fragments]
    assert max(totals) - min(totals) <= max(sizes)
    assert all(totals) or count > len(sizes)


@given(st.integers(1, 60), st.integers(1, 20))
def test_layers_of_one_size_are_dealt_out_in_turn(num_layers: int, count: int):
    assert divide([7] * num_layers, count) == [list(range(first, num_layers, count)) for first in range(count)]


def test_both_iterates_of_schedule_free_are_in_the_fragment_of_their_parameter(make_config):
    replica = _replica(make_config, optimizer=ScheduleFreeSgdConfig(), sync=StreamingDiLoCoConfig(fragments=4))

    tensors = replica.state.own["sync"].tensors()
    anchors = [tensors[f"{index}.anchor"] for index in range(4)]
    live = torch.cat([tensor.detach().flatten() for tensor in replica.parts.optimizer.iterate()])
    assert all(torch.equal(*anchor.chunk(2)) for anchor in anchors)  # before the first step they are equal
    assert torch.equal(torch.cat(anchors).sort().values, live.sort().values)


def test_more_fragments_than_tensors_are_refused(make_config):
    with pytest.raises(WorkloadError, match=r"`fragments` must be at most \d+, the tensors .*, got 64"):
        _replica(make_config, sync=StreamingDiLoCoConfig(period=128, fragments=64))


def test_apart_batch_norm_is_evaluated_with_statistics_of_the_mean_and_keeps_its_own(make_config, small_data):
    workload = Mnist5kCnn(batch_size=2)
    watched, unwatched = (
        _replica(make_config, workload=workload, sync=CocodSgdConfig(period=4), seed=1) for _ in range(2)
    )
    for replica in (watched, unwatched):
        replica.run(SEGMENT)

    trained = {name: buffer.clone() for name, buffer in watched.model.named_buffers()}
    evaluated = watched._evaluated.tensors(watched.step, 0, num_present=1, averaged=False)

    assert not torch.equal(evaluated["2.running_mean"], trained["2.running_mean"])
    assert all(torch.equal(buffer, trained[name]) for name, buffer in watched.model.named_buffers())
    assert watched.run(SEGMENT).losses == unwatched.run(SEGMENT).losses


@pytest.mark.parametrize(
    "config",
    [
        StlSgdConfig(period=4, first_stage=4, **SCREENED),
        StreamingDiLoCoConfig(period=8, fragments=2, overlap_steps=0, **SCREENED),
    ],
    ids=lambda config: config.kind,
)
@pytest.mark.parametrize("pace", [0.25, 0.5, 0.75, 1.0])
def test_steps_that_a_rank_leaves_out_are_no_part_of_its_way(make_config, monkeypatch, config, pace):
    replica, paths, rates = _replica(make_config, sync=config), [], []
    monkeypatch.setattr(Outliers, "weight", lambda screen, moved, loss, path: paths.append(path) or 1.0)
    step = replica.parts.optimizer.step
    monkeypatch.setattr(
        replica.parts.optimizer, "step", lambda *given, **named: rates.append(_rate(replica)) or step(*given, **named)
    )

    replica.run(Segment(num_steps=12, learning_rate=0.1), pace=pace)

    # of the first fragment, after step 4 and 12, and of the second, after step 8
    again = rates[: 2 * len(rates) // 3] if config.kind == "streaming_diloco" else []
    assert sum(paths) == pytest.approx(sum(rates) + sum(again))
    assert len(rates) == 12 * pace


@pytest.mark.parametrize("loss", [[], [0.25]], ids=["without a loss", "with one"])
def test_reports_of_averages_are_read_as_earlier_releases_saved_them(loss):
    saved = [0.5, False, 0.1, {"gradient": 100}, {}, *loss]

    read = Arrived.saved(saved)

    assert read[:3] == (0.5, False, 0.1)
    assert [read.loss] == loss if loss else math.isnan(read.loss)


def _rate(replica: Replica) -> float:
    return replica.parts.optimizer.rates()[0][0]


@pytest.mark.parametrize("pace", [0.25, 0.4, 0.5, 0.9, 1.0])
def test_a_rank_trains_its_share_of_the_steps_and_the_first_one(pace: float):
    trained = [is_trained(index, pace) for index in range(100)]

    assert trained[0]
    assert abs(sum(trained) - 100 * pace) <= 1


#: What turns all gradients into NaN, with the loss or without it.
LOST = {
    "loss": lambda model, loss: math.nan * loss,
    "gradients": lambda model, loss: loss + sum((0 * each).sqrt().sum() for each in model.parameters()),
}


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
@pytest.mark.parametrize(
    "config",
    [
        LocalSgdConfig(period=4, **SCREENED),
        StreamingDiLoCoConfig(period=4, fragments=2, overlap_steps=0, **SCREENED),
        StreamingDiLoCoConfig(period=4, fragments=2, overlap_steps=1, **SCREENED),
    ],
    ids=["local_sgd", "streaming_diloco", "overlapped"],
)
def test_a_rank_that_was_lost_trains_on_from_the_average_that_left_it_out(make_config, config, lost):
    replica = _replica(make_config, sync=config, optimizer=AdamWConfig())
    segment, loss = Segment(num_steps=4, learning_rate=0.003), replica.workload.loss
    replica.run(segment)
    replica.workload.loss = lambda model, batch: lost(model, loss(model, batch))
    replica.run(segment.model_copy(update={"num_steps": 1}))
    replica.workload.loss = loss
    replica.run(segment.model_copy(update={"num_steps": 3}))

    assert all(map(math.isfinite, replica.run(segment.model_copy(update={"num_steps": 8})).losses[-4:]))
    assert all(tensor.isfinite().all() for tensor in replica.parts.optimizer.tensors().values())


def _result(losses: list[float], *, diverged: bool = False) -> SegmentResult:
    return SegmentResult(
        first_step=0,
        losses=tuple(losses),
        step_seconds=tuple(0.1 * (1 + step) for step in range(len(losses))),
        bytes_sent=({"parameters": 8},),
        gradient_scales=tuple(losses),
        bytes_dense=8,
        diverged=diverged,
    )


@given(st.floats(-1e30, 1e30), st.integers(1, 9))
def test_of_ranks_that_report_the_same_the_mean_is_that_bit_for_bit(loss: float, num_ranks: int):
    assert merge([_result([loss])] * num_ranks).losses == (loss,)


def test_losses_of_ranks_apart_are_averaged():
    assert merge([_result([1.0, 2.0]), _result([2.0, 4.0])]).losses == (1.5, 3.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_rank_apart_whose_loss_is_not_finite_ends_the_segment_for_all(bad: float):
    results = [_result([1.0, 1.0, 1.0]), _result([1.0, bad, 1.0])]

    told = merge([SegmentResult.model_validate(each.model_dump(mode="json")) for each in results])

    assert told.diverged
    assert [len(series) for series in (told.losses, told.step_seconds, told.gradient_scales)] == [1, 1, 1]


def test_where_averages_leave_ranks_out_the_others_say_what_the_loss_is():
    lost, finite = [1.0, math.nan, math.inf], [3.0, 2.0, 1.0]

    told = merge([_result(lost), _result(finite), _result(finite)], leaves_out=True)

    assert told.losses == told.gradient_scales == (7 / 3, 2.0, 1.0) and not told.diverged
    assert merge([_result(lost)] * 2, leaves_out=True).losses == (1.0,)


def test_an_average_costs_what_an_exchange_of_its_kind_does_and_schedule_free_two():
    foreseen = {
        (sync.kind, num_iterates): sync.meeting_traffic(
            SHAPES, num_workers=4, exchange=NoneConfig(), num_iterates=num_iterates
        ).bytes
        for sync in (EveryStepConfig(), VrlSgdConfig(), CocodSgdConfig())
        for num_iterates in (1, 2)
    }

    dense = collectives.dense_step(1024, 4).bytes
    assert foreseen["every_step", 1] == foreseen["every_step", 2] == foreseen["vrl_sgd", 1] == dense
    assert foreseen["vrl_sgd", 2] == collectives.dense_step(2048, 4).bytes
    assert foreseen["cocod_sgd", 2] == 2 * foreseen["cocod_sgd", 1] == collectives.all_reduce(8192, 4).bytes


def test_compressed_averages_cost_what_the_exchange_makes_of_them():
    exchange = TopKConfig(density=0.01)

    for sync, (num_iterates, shapes) in product((LocalSgdConfig(), DiLoCoConfig()), ((1, SHAPES), (2, SHAPES * 2))):
        foreseen = sync.meeting_traffic(SHAPES, num_workers=2, exchange=exchange, level=0.01, num_iterates=num_iterates)
        assert foreseen == cost.step_traffic(shapes, num_workers=2, exchange=exchange, level=0.01)


def test_a_replica_refuses_a_method_that_its_exchange_or_optimizer_does_not_go_with(make_config):
    with pytest.raises(ValueError, match="`vrl_sgd` averages exactly"):
        make_config(sync=VrlSgdConfig(), exchange=TopKConfig(density=0.1))


@pytest.mark.parametrize("method", registry.of("sync"), ids=lambda method: method.kind)
def test_a_state_goes_through_json_and_through_torch_s_files_wherever_a_round_is(make_config, method: Method):
    replica = _replica(make_config, sync=method.config(**method.least))
    parts = replica.state.shared | replica.state.own
    for _ in range(9):
        replica.run(Segment(num_steps=1, learning_rate=0.1))
        scalars, file = scalars_of(parts), io.BytesIO()
        torch.save(scalars, file)
        file.seek(0)

        assert torch.load(file) == scalars  # by default it takes what is known to be harmless
        load_scalars(parts, json.loads(json.dumps(scalars, allow_nan=False)))
        assert scalars_of(parts) == scalars


def test_the_trivial_policy_is_the_default_and_adds_nothing_to_checkpoints(make_config):
    state = _replica(make_config).state

    assert isinstance(ReplicaConfig.model_fields["sync"].default, EveryStepConfig)
    assert state.shared.keys() == {"parameters", "optimizer", "alignment", "steps", "average"}
    assert not state.shared["alignment"].tensors() and not state.shared["average"].tensors()
    assert state.own.keys() == {"buffers", "exchange", "random"}


@given(rounds=st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=5), min_size=1))
def test_a_step_waits_as_long_as_one_of_the_last_round_did(rounds):
    wait, told = RoundWait(), []
    for seconds in rounds:
        for number, each in enumerate(seconds, start=1):
            told.append(wait.count(each, ends_round=number == len(seconds)))
    ends = [math.nan, *(sum(seconds) / len(seconds) for seconds in rounds)]
    expected = [
        ends[index + (number == len(seconds))]
        for index, seconds in enumerate(rounds)
        for number in range(1, len(seconds) + 1)
    ]

    assert told == pytest.approx(expected, nan_ok=True)


def test_a_meeting_apart_from_its_last_step_belongs_to_the_round():
    wait = RoundWait()
    steps = [wait.count(each, ends_round=False) for each in (0.0, 0.2)]

    assert all(map(math.isnan, steps)) and wait.count(0.4, num_steps=0, ends_round=True) == pytest.approx(0.3)
