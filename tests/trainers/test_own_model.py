"""A user's own model, named as a factory: what real models bring trains as in plain torch, or is refused by name."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import own_models
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from trainers.methods.exchange.cser.spec import CserConfig
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.exchange.liec_sgd.spec import LiecSgdConfig
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.optimizer.spec import OwnOptimizerConfig, ScheduleFreeSgdConfig, SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.every_step.spec import EveryStepConfig
from trainers.methods.sync.local_sgd.spec import LocalSgdConfig
from trainers.segment import Segment
from trainers.spec.workloads import OwnWorkload
from trainers.traffic import collectives
from trainers.training import feed, model as models
from trainers.training.checkpoint import CheckpointError, commit_manifest
from trainers.training.replica import Replica
from trainers.training.sampler import Sampler
from trainers.workload import Workload, WorkloadError
from trainers.workloads import registry

HERE = str(Path(__file__).parent)
SEGMENT = Segment(num_steps=8, learning_rate=0.05)
PLAIN = SgdConfig(momentum=0.9, weight_decay=0.01)
Train = Callable[..., Replica]


def own(name: str, **params: Any) -> OwnWorkload:
    return OwnWorkload(factory=f"own_models:{name}", params=params, path=HERE)


@pytest.fixture
def replica() -> Train:
    """Build one rank alone, of a factory's name and its parameters."""

    def build(
        name: str,
        *,
        optimizer: Any = PLAIN,
        exchange: Any = None,
        sync: Any = None,
        weights: Path | None = None,
        **params: Any,
    ):
        workload = own(name, **params).model_copy(update={"weights": str(weights) if weights else None})
        parts = {"exchange": exchange or NoneConfig(), "sync": sync or EveryStepConfig()}
        config = ReplicaConfig(workload=workload, optimizer=optimizer, seed=3, **parts)
        return Replica(config, 0, 1, device="cpu")

    return build


def exported(replica: Replica, folder: Path) -> dict[str, torch.Tensor]:
    replica.export(f"{folder}/weights.safetensors")
    return load_file(folder / "weights.safetensors")


def train_plainly(workload: Workload, model: nn.Module, optimizer: torch.optim.Optimizer, num_steps: int) -> None:
    """Train as anybody would in torch, on the batches that a single worker sees."""
    sampler = Sampler(seed=3, num_samples=len(workload.training), num_workers=1, batch_size=workload.batch_size)
    for step in range(num_steps):
        optimizer.zero_grad()
        workload.loss(model, workload.training[sampler.indices(step, rank=0)]).backward()
        optimizer.step()


def made_by_0_1_0(folder: Path) -> None:
    """Have the checkpoint's manifest not say in which order parameters lie in vectors: that of the groups."""
    told = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({name: value for name, value in told.items() if name != "order"}))


# -- what works ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["SGD", "Adam", "NAdam", "RMSprop", "Adagrad", "ASGD"])
def test_a_users_optimizer_trains_as_in_plain_torch(replica: Train, kind: str):
    ours = replica("OwnOptimizer", optimizer=OwnOptimizerConfig(), kind=kind)
    workload = own_models.OwnOptimizer(kind)
    model = models.build(workload, 3)

    ours.run(Segment(num_steps=8, learning_rate=1.0))
    train_plainly(workload, model, workload.optimizer(model), 8)

    for mine, theirs in zip(ours.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_parameter_groups_multiply_the_rate_and_keep_their_options(replica: Train):
    ours = replica("Grouped")
    workload = own_models.Grouped()
    model = models.build(workload, 3)
    groups = [{"params": [model[0].weight]}, {"params": model[2].parameters(), "lr": 0.5, "weight_decay": 0.0}]

    ours.run(SEGMENT)
    model[0].bias.requires_grad_(False)
    train_plainly(workload, model, torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=0.01), 8)

    for mine, theirs in zip(ours.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_first_bucket_is_sent_before_backward_ends_however_groups_divide_the_model(replica: Train):
    ours, is_full = replica("Decayed", exchange=NoneConfig(bucket_mib=1e-4)), list[bool]()
    ours.model[1].register_full_backward_pre_hook(lambda *_: is_full.append(ours.parts.buffer._filled[0].is_set()))

    ours.run(Segment(num_steps=2, learning_rate=0.01))

    assert is_full == [True] * 2


@pytest.mark.parametrize(
    ("exchange", "brought"), [("cser", "momentum"), ("cser", "weight_decay"), ("liec_sgd", "momentum")]
)
def test_parameter_groups_bring_nothing_that_an_exchange_does_not_go_with(replica: Train, exchange: str, brought: str):
    optimizer = SgdConfig(momentum=0.0)
    drifting = {"cser": CserConfig(), "liec_sgd": LiecSgdConfig()}[exchange]

    with pytest.raises(WorkloadError, match=f"parameter group brings {brought} 0.5: with `{exchange}`"):
        replica("Broken", optimizer=optimizer, exchange=drifting, fault=brought)
    replica("Broken", optimizer=optimizer, fault=brought)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "NAdam", "Adagrad"])
@pytest.mark.parametrize("before", [0, 3])
def test_a_users_optimizer_goes_back_to_any_snapshot(replica: Train, kind: str, before: int):
    ours = replica("OwnOptimizer", optimizer=OwnOptimizerConfig(), kind=kind)
    ours.run(Segment(num_steps=before, learning_rate=1.0))
    ours.snapshot("stage")
    expected = ours.run(SEGMENT).losses

    for _ in range(2):
        ours.restore("stage")
        assert ours.run(SEGMENT).losses == expected


@pytest.mark.parametrize("kind", ["Adam", "NAdam"])
def test_a_users_optimizer_goes_on_from_a_checkpoint_in_a_new_process(replica: Train, tmp_path: Path, kind: str):
    ours, later = (replica("OwnOptimizer", optimizer=OwnOptimizerConfig(), kind=kind) for _ in range(2))
    ours.run(SEGMENT)
    commit_manifest(str(tmp_path), ours.save(str(tmp_path)))

    later.load(str(tmp_path))

    assert later.run(SEGMENT).losses == ours.run(SEGMENT).losses


def test_a_residual_that_lies_in_the_order_of_other_groups_is_refused(replica: Train, tmp_path: Path):
    ours = replica("Decayed", exchange=ThresholdConfig(density=0.1))
    ours.run(SEGMENT)
    commit_manifest(str(tmp_path), ours.save(str(tmp_path)))
    ours.load(str(tmp_path))
    made_by_0_1_0(tmp_path)

    with pytest.raises(CheckpointError, match="order of the parameter groups"):
        ours.load(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "exchange"), [("Decayed", NoneConfig()), ("Regression", ThresholdConfig(density=0.1))]
)
def test_earlier_checkpoints_without_such_vectors_or_groups_go_on(
    replica: Train, tmp_path: Path, name: str, exchange: Any
):
    ours, later = (replica(name, exchange=exchange) for _ in range(2))
    ours.run(SEGMENT)
    commit_manifest(str(tmp_path), ours.save(str(tmp_path)))
    made_by_0_1_0(tmp_path)

    later.load(str(tmp_path))

    assert later.run(SEGMENT).losses == ours.run(SEGMENT).losses


@pytest.mark.parametrize("damage", ["missing", "other"])
def test_a_checkpoint_that_is_refused_leaves_a_users_optimizer_as_it_was(replica: Train, tmp_path: Path, damage: str):
    ours, untouched = (replica("OwnOptimizer", optimizer=OwnOptimizerConfig(), kind="Adam") for _ in range(2))
    shards = ours.save(str(tmp_path))  # before Adam has made any state
    if damage == "missing":
        (tmp_path / "rank-0.safetensors").unlink()
    else:
        other = replica("OwnOptimizer", optimizer=OwnOptimizerConfig(), exchange=ThresholdConfig(density=0.1))
        shards = [each for each in other.save(str(tmp_path)) if each.name == "rank-0.safetensors"] + shards[1:]
    commit_manifest(str(tmp_path), shards)
    for each in (ours, untouched):
        each.run(SEGMENT)

    with pytest.raises(CheckpointError):
        ours.load(str(tmp_path))

    assert ours.run(SEGMENT).losses == untouched.run(SEGMENT).losses


def test_frozen_parameters_stay_and_are_not_exchanged(replica: Train, tmp_path: Path):
    ours = replica("Frozen")
    before = {name: parameter.clone() for name, parameter in ours.model.named_parameters()}

    ours.run(SEGMENT)
    after = exported(ours, tmp_path)

    assert torch.equal(after["0.weight"], before["0.weight"])
    assert not torch.equal(after["2.weight"], before["2.weight"])
    assert collectives.num_elements(ours.shapes) == 9  # the last layer's 8 weights and its bias


def test_tied_parameters_are_one_and_export_under_both_names(replica: Train, tmp_path: Path):
    ours = replica("Tied", optimizer=ScheduleFreeSgdConfig())
    ours.run(SEGMENT)
    loss = ours.evaluate().loss

    weights = exported(ours, tmp_path)
    again = own_models.TiedNet()
    again.load_state_dict(weights)

    assert collectives.num_elements(ours.shapes) == sum(parameter.numel() for parameter in again.parameters())
    assert torch.equal(weights["first.weight"], weights["second.weight"])
    batch = own_models.Tied().validation[torch.arange(50)]
    assert own_models.Tied().loss(again, batch).item() == pytest.approx(loss, rel=1e-6)


def test_an_unused_parameter_without_decay_keeps_every_bit(replica: Train):
    ours = replica("Unused", optimizer=SgdConfig(), exchange=ThresholdConfig(density=0.2))
    before = ours.model.unused.weight.detach().clone()

    ours.run(SEGMENT)

    assert torch.equal(ours.model.unused.weight, before)


def test_gradient_checkpointing_changes_no_bit_even_with_dropout(replica: Train):
    losses = [replica("Checkpointed", recompute=recompute).run(SEGMENT).losses for recompute in (False, True)]

    assert losses[0] == losses[1]


def test_transforms_of_torch_func_train_as_autograd_does_though_what_they_keep_is_not_counted(replica: Train):
    ours, twin = replica("Sloped", functional=True), replica("Sloped", functional=False)

    found, expected = ([each.run(SEGMENT) for _ in range(2)] for each in (ours, twin))

    assert [each.losses for each in found] == [pytest.approx(each.losses) for each in expected]
    assert found[1].saved_bytes == 0 < expected[1].saved_bytes


def test_a_sparse_embedding_trains_as_its_dense_twin(replica: Train, monkeypatch: pytest.MonkeyPatch):
    sparse = replica("SparseEmbedding").run(SEGMENT).losses
    dense_twin = replica("SparseEmbedding")
    dense_twin.model.table.sparse = False

    assert sparse == dense_twin.run(SEGMENT).losses


def test_own_metrics_are_measured_on_the_whole_validation_set(replica: Train):
    ours = replica("Regression")
    inputs, targets = ours.workload.validation.tensors

    evaluation = ours.evaluate()

    with torch.no_grad():
        expected = (ours.model(inputs) - targets).abs().mean().item()
    assert evaluation.metrics == pytest.approx({"mae": expected})


@pytest.mark.parametrize(("given", "expected"), [(None, [48, 2]), (20, [20, 20, 10])])
def test_an_evaluation_takes_four_batches_at_once_unless_the_workload_says_it(
    replica: Train, given: int | None, expected: list[int]
):
    ours = replica("Large", fits=1000, evaluation_batch_size=given)

    ours.evaluate()

    assert ours.workload.evaluated == expected


def test_batches_that_a_gpu_has_no_room_for_are_halved_until_it_has(replica: Train, caplog: pytest.LogCaptureFixture):
    ours, roomy = replica("Large", fits=13), replica("Large", fits=1000)

    assert ours.evaluate().loss == pytest.approx(roomy.evaluate().loss)
    assert ours.workload.evaluated == [12, 12, 12, 12, 2]
    assert "a smaller `evaluation_batch_size` of the workload" in caplog.text


def test_each_evaluation_begins_with_the_batches_that_the_workload_asks_for(replica: Train):
    ours = replica("Large", fits=13)
    ours.evaluate()
    ours.workload.fits = 1000
    del ours.workload.evaluated[:]

    ours.evaluate()

    assert ours.workload.evaluated == [48, 2]


def test_a_sample_that_a_gpu_has_no_room_for_ends_the_evaluation(replica: Train):
    with pytest.raises(torch.OutOfMemoryError, match="an evaluation of one sample: CUDA out of memory"):
        replica("Large", fits=0).evaluate()


@pytest.mark.parametrize(
    ("name", "optimizer", "params"),
    [
        ("OddOptimizer", OwnOptimizerConfig(), {"kind": "counting"}),
        ("OddOptimizer", OwnOptimizerConfig(), {"kind": "counting in groups"}),
        ("PartlyFrozen", PLAIN, {}),
        ("Mixed", PLAIN, {}),
        ("Averaged", PLAIN, {"in_place": True}),
        ("Taught", PLAIN, {"in_place": True}),
        ("NoisyTensors", PLAIN, {}),
        ("Pretrained", PLAIN, {}),
    ],
)
@pytest.mark.parametrize("before", [0, 3])
def test_whatever_a_model_draws_or_keeps_is_rewound(
    replica: Train, name: str, optimizer: Any, params: dict[str, Any], before: int
):
    ours = replica(name, optimizer=optimizer, **params)
    ours.run(Segment(num_steps=before, learning_rate=0.05))
    ours.snapshot("stage")
    expected = ours.run(SEGMENT).losses

    ours.evaluate()
    ours.restore("stage")

    assert ours.run(SEGMENT).losses == expected


def test_evaluating_and_exporting_leave_a_teacher_as_it_was(replica: Train, tmp_path: Path):
    ours = replica("TaughtNormed", optimizer=ScheduleFreeSgdConfig())
    ours.run(SEGMENT)
    teacher = ours.model.get_parameter("teacher.weight")
    before = teacher.clone()

    ours.evaluate()
    weights = exported(ours, tmp_path)

    assert torch.equal(teacher, before)
    assert torch.equal(weights["teacher.weight"], before)


def test_evaluating_leaves_a_buffer_that_is_not_saved_as_it_was(replica: Train):
    ours = replica("Averaged", in_place=True)
    ours.model._non_persistent_buffers_set.add("average")
    before = ours.model.average.clone()

    ours.evaluate()

    assert torch.equal(ours.model.average, before)


def test_a_teacher_that_evaluating_changes_is_refused(replica: Train):
    with pytest.raises(WorkloadError, match=r"`evaluate` changed `teacher.weight`: do that only `if model.training`"):
        replica("Taught", in_place=True, always=True).evaluate()


def test_trained_weights_that_evaluating_changes_are_refused_too(replica: Train):
    with pytest.raises(WorkloadError, match=r"`evaluate` changed `0.weight`: do that only `if model.training`"):
        replica("Clipped", always=True).evaluate()


def test_weights_may_be_clipped_while_they_train(replica: Train):
    ours = replica("Clipped", always=False)

    ours.run(SEGMENT)

    assert ours.evaluate().loss > 0


def test_copies_of_frozen_weights_lie_in_host_memory(replica: Train, monkeypatch: pytest.MonkeyPatch):
    ours, on_host, empty_like = replica("PartlyFrozen"), set[int](), torch.empty_like

    def noted(tensor: torch.Tensor, device: str | None = None) -> torch.Tensor:
        on_host.update([tensor.data_ptr()] if device == "cpu" else [])
        return empty_like(tensor, device=device)

    monkeypatch.setattr(torch, "empty_like", noted)
    ours.snapshot("slot")

    assert on_host == {each.data_ptr() for each in ours.model.parameters() if not each.requires_grad}


def test_a_copy_that_a_gpu_has_no_room_for_lies_in_host_memory(replica: Train, monkeypatch: pytest.MonkeyPatch):
    ours, empty_like = replica("Regression"), torch.empty_like

    def full(tensor: torch.Tensor, device: str | None = None) -> torch.Tensor:
        if device is None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return empty_like(tensor, device=device)

    monkeypatch.setattr(torch, "empty_like", full)
    ours.snapshot("slot")
    expected = ours.run(SEGMENT).losses
    ours.restore("slot")

    assert ours.run(SEGMENT).losses == expected


def test_evaluating_leaves_each_part_in_its_own_mode(replica: Train):
    ours = replica("PartlyFrozen")

    ours.evaluate()

    assert [module.training for module in ours.model] == [True, False, True, True]


@pytest.mark.parametrize("optimizer", [PLAIN, ScheduleFreeSgdConfig()])
def test_an_adapter_that_is_merged_to_be_evaluated_trains_on_as_if_it_were_not(replica: Train, optimizer: Any):
    ours, unwatched = replica("Adapted", optimizer=optimizer), replica("Adapted", optimizer=optimizer)
    for each in (ours, unwatched):
        each.run(SEGMENT)

    ours.evaluate()

    assert not ours.model[0].is_merged
    assert torch.equal(ours.model[0].weight, unwatched.model[0].weight)
    assert ours.run(SEGMENT).losses == unwatched.run(SEGMENT).losses


def test_an_adapter_is_merged_from_the_weights_that_are_evaluated(replica: Train, monkeypatch: pytest.MonkeyPatch):
    ours, unmerged = (replica("Adapted", optimizer=ScheduleFreeSgdConfig()) for _ in range(2))
    for each in (ours, unmerged):
        each.run(SEGMENT)

    merged = ours.evaluate().loss
    monkeypatch.setattr(own_models.Merged, "train", nn.Linear.train)

    assert merged == pytest.approx(unmerged.evaluate().loss, rel=1e-5)


def test_a_part_that_its_owner_keeps_in_evaluation_mode_is_so_before_and_after_an_evaluation(replica: Train):
    ours = replica("Adapted")
    before = [module.training for module in ours.model]

    ours.evaluate()

    assert before == [module.training for module in ours.model] == [True, False, True]


def test_a_model_that_comes_in_evaluation_mode_is_trained(replica: Train):
    assert all(module.training for module in replica("Pretrained").model.modules())


# -- data ---------------------------------------------------------------------------------------------------


def test_loader_processes_bring_the_same_random_samples_as_none(replica: Train):
    alone, loaded = replica("MapStyle"), replica("MapStyle", processes=2)

    expected = [alone.run(SEGMENT).losses for _ in range(2)]

    assert [loaded.run(SEGMENT).losses for _ in range(2)] == expected


def test_loader_processes_evaluate_the_same_random_samples_as_none_each_time(replica: Train):
    alone, loaded = replica("MapStyle"), replica("MapStyle", processes=2)

    found = [each.evaluate().loss for each in (alone, loaded, loaded)]

    assert len({*found}) == 1


def test_loader_processes_fetch_the_validation_samples(replica: Train):
    ours = replica("WhoFetches")

    ours.evaluate()

    assert os.getpid() not in ours.workload.fetched_by


def test_a_users_collate_makes_the_batches_of_tensor_data_too(replica: Train):
    plain, collated = replica("Regression"), replica("Collated")

    assert collated.run(SEGMENT).losses == plain.run(SEGMENT).losses
    assert collated.evaluate() == plain.evaluate()


def test_loader_processes_follow_a_rewind(replica: Train):
    ours = replica("MapStyle", processes=1)
    ours.snapshot("stage")
    expected = ours.run(SEGMENT).losses

    ours.restore("stage")

    assert ours.run(SEGMENT).losses == expected


def test_loader_processes_neither_start_anew_nor_change_over_steps_that_a_rank_leaves_out(
    replica: Train, monkeypatch: pytest.MonkeyPatch
):
    starts, begin = [], DataLoader.__iter__
    monkeypatch.setattr(DataLoader, "__iter__", lambda loader: starts.append(loader) or begin(loader))
    apart = LocalSgdConfig(period=100)
    alone, loaded = replica("MapStyle", sync=apart), replica("MapStyle", sync=apart, processes=1)

    assert loaded.run(SEGMENT, pace=0.3).losses == alone.run(SEGMENT, pace=0.3).losses
    assert len(starts) == 1
    assert loaded.run(SEGMENT).losses == alone.run(SEGMENT).losses


def test_loader_processes_start_anew_no_more_once_a_round_has_shown_its_length(
    replica: Train, monkeypatch: pytest.MonkeyPatch
):
    starts, begin = [], DataLoader.__iter__
    monkeypatch.setattr(DataLoader, "__iter__", lambda loader: starts.append(loader) or begin(loader))
    rounds, segment = LocalSgdConfig(period=5), Segment(num_steps=25, learning_rate=0.1)
    alone, loaded = replica("MapStyle", sync=rounds), replica("MapStyle", sync=rounds, processes=1)

    assert loaded.run(segment, pace=0.3).losses == alone.run(segment, pace=0.3).losses
    assert len(starts) == 2
    assert loaded.run(segment, pace=0.45).losses == alone.run(segment, pace=0.45).losses


def test_loader_processes_start_anew_once_at_most_in_a_round_of_another_length(
    replica: Train, monkeypatch: pytest.MonkeyPatch
):
    starts, begin = [], DataLoader.__iter__
    monkeypatch.setattr(DataLoader, "__iter__", lambda loader: starts.append(loader) or begin(loader))
    rounds = LocalSgdConfig(period=(1, 40))
    alone, loaded = replica("MapStyle", sync=rounds), replica("MapStyle", sync=rounds, processes=1)

    for period, num_steps in ((3, 9), (30, 30)):
        begun = len(starts)
        segment = Segment(num_steps=num_steps, learning_rate=0.1, period=period)
        assert loaded.run(segment, pace=0.3).losses == alone.run(segment, pace=0.3).losses

    assert len(starts) <= begun + 1


def test_batches_that_a_new_pace_leaves_out_are_dropped(replica: Train, monkeypatch: pytest.MonkeyPatch):
    starts, begin = [], DataLoader.__iter__
    monkeypatch.setattr(DataLoader, "__iter__", lambda loader: starts.append(loader) or begin(loader))
    rounds, segment = LocalSgdConfig(period=4), Segment(num_steps=4, learning_rate=0.1)
    alone, loaded = replica("MapStyle", sync=rounds), replica("MapStyle", sync=rounds, processes=1)

    for pace in (1.0, 0.3, 0.3):
        assert loaded.run(segment, pace=pace).losses == alone.run(segment, pace=pace).losses
    assert len(starts) == 1


def test_a_stream_is_read_on_over_steps_that_a_rank_leaves_out_and_brings_what_it_would_opened_there(
    replica: Train, monkeypatch: pytest.MonkeyPatch
):
    opened, batches = [], own_models.Numbers.batches
    monkeypatch.setattr(
        own_models.Numbers, "batches", lambda stream, **where: opened.append(where) or batches(stream, **where)
    )
    apart = LocalSgdConfig(period=100)
    losses = replica("Streamed", sync=apart, noisy=True).run(SEGMENT, pace=0.3).losses
    num_opened = len(opened)
    monkeypatch.setattr(feed, "_READ_ON", 0)

    assert replica("Streamed", sync=apart, noisy=True).run(SEGMENT, pace=0.3).losses == losses
    assert (num_opened, len(opened) - num_opened) == (1, 3)


@pytest.mark.parametrize("name", ["MapStyle", "Streamed", "PartlyFrozen", "Pretrained", "SparseEmbedding", "Reentrant"])
def test_measuring_how_sharp_a_model_is_repeats_draws_and_leaves_what_comes_as_it_was(replica: Train, name: str):
    measured, untouched = (replica(name, exchange=NoneConfig(overlap=False)) for _ in range(2))
    measured.snapshot("stage")

    found = [measured.landscape() for _ in range(2)]
    measured.restore("stage")

    assert found[0] == found[1] is not None
    assert measured.run(SEGMENT).losses == untouched.run(SEGMENT).losses


def test_a_model_is_as_sharp_where_backward_adds_to_a_gradient_twice(replica: Train):
    found = [replica("Reentrant", recompute=recompute).landscape() for recompute in (False, True)]

    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_random_samples_disturb_neither_dropout_nor_the_process(replica: Train):
    ours = replica("MapStyle")
    before = torch.random.get_rng_state()

    ours.run(SEGMENT)

    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("noisy", [False, True])
def test_a_stream_is_opened_where_training_is_rewound_to(replica: Train, noisy: bool):
    ours = replica("Streamed", noisy=noisy)
    ours.run(SEGMENT)
    ours.snapshot("stage")
    expected = ours.run(SEGMENT).losses

    ours.restore("stage")

    assert ours.run(SEGMENT).losses == expected


def test_samples_and_their_loss_draw_different_numbers(replica: Train):
    ours = replica("Drawing")

    ours.run(Segment(num_steps=2, learning_rate=0.05))

    drawn = ours.workload.drawn
    assert len(set(drawn)) == len(drawn) == 2 * 2 * (12 + 1)


def test_packed_sequences_go_to_the_device_without_their_sizes():
    packed = nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])

    moved = feed.to_device({"words": packed}, torch.device("meta"))["words"]

    assert (moved.data.device.type, moved.batch_sizes.device.type) == ("meta", "cpu")
    assert moved.batch_sizes.tolist() == [2, 2, 1]


def test_a_stream_that_ends_says_so(replica: Train):
    with pytest.raises(WorkloadError, match=r"`training.batches` ended before step 5"):
        replica("Streamed", length=5).run(SEGMENT)


# -- starting weights ---------------------------------------------------------------------------------------


def test_training_starts_from_given_weights(replica: Train, tmp_path: Path):
    first = replica("Regression")
    first.run(SEGMENT)
    exported(first, tmp_path)

    second = replica("Regression", weights=tmp_path / "weights.safetensors")

    assert second.evaluate().loss == pytest.approx(first.evaluate().loss, rel=1e-6)


def test_a_tied_weight_may_be_given_under_one_name(replica: Train, tmp_path: Path):
    weights = own_models.TiedNet().state_dict()
    del weights["second.weight"]
    save_file({name: torch.ones_like(tensor) for name, tensor in weights.items()}, tmp_path / "one.safetensors")

    ours = replica("Tied", weights=tmp_path / "one.safetensors")

    assert ours.model.second.weight.eq(1).all()


@pytest.mark.parametrize("given", ["Regression", "Compiled"])
def test_a_compiled_model_gives_and_takes_weights_under_the_plain_names(replica: Train, tmp_path: Path, given: str):
    plain = exported(replica("Compiled"), tmp_path)
    ones = {name: torch.ones_like(tensor) for name, tensor in replica(given).model.state_dict().items()}
    save_file(ones, tmp_path / "ones.safetensors")

    ours = replica("Compiled", weights=tmp_path / "ones.safetensors")

    assert plain.keys() == own_models.Regression().model().state_dict().keys()
    assert all(each.eq(1).all() for each in ours.model.parameters())


def test_weights_that_do_not_fit_are_refused_by_name(replica: Train, tmp_path: Path):
    save_file({"0.weight": torch.zeros(2, 2), "head": torch.zeros(1)}, tmp_path / "other.safetensors")

    with pytest.raises(WorkloadError) as refused:
        replica("Regression", weights=tmp_path / "other.safetensors")

    for fault in ("lacks `0.bias`, `2.bias`, `2.weight`", "no place for `head`", "other shapes of `0.weight`"):
        assert fault in str(refused.value)


@pytest.mark.parametrize("content", [None, b"not tensors"])
def test_a_file_that_holds_no_weights_is_refused(replica: Train, tmp_path: Path, content: bytes | None):
    path = tmp_path / "weights.safetensors"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(
        WorkloadError, match=r"`workload.weights`: .*weights.safetensors is (missing|not a safetensors)"
    ):
        replica("Regression", weights=path)


# -- what is refused ----------------------------------------------------------------------------------------

FAULTS = {
    "no module": "must return a torch.nn.Module, got str",
    "lazy": "`weight` has no values yet",
    "meta": "`weight` has no values yet",
    "half": r"`0.weight` is torch.bfloat16; trained parameters must be torch.float32",
    "no entries": r"`nobody` is trained and has no entries, its shape is \(0, 3\): freeze it",
    "expanded": r"buffer `mask` of shape \(3, 2\) has strides \(0, 1\): several entries .*add `.clone\(\)`",
    "complex128": "buffer `turns` is torch.complex128, which no checkpoint holds: keep it as torch.complex64",
    "extra state": r"module `3` \(Scaled\) has a state of its own \(`get_extra_state`\).*keep it in a buffer",
    "sparse": r"buffer `graph` is sparse .*add `.to_dense\(\)`",
    "synchronised": "module `1` is a SyncBatchNorm, .*: return BatchNorm",
    "max_norm": r"`max_norm` of module `0` \(Embedding\) .*: clip the whole table in `loss`",
    "max_norm of bags": r"`max_norm` of module `0` \(EmbeddingBag\)",
    "all frozen": "no parameter is trained",
    "no group": "no parameter is trained",
    "foreign parameter": r"a parameter of shape \(3,\) is in a parameter group and not in the model",
    "bad rate": "`lr` of parameter group 0 multiplies the learning rate: it must be > 0, got 0.0",
    "unknown option": r"options that sgd does not know: \['beta'\]",
    "iterable": "`training` is a Endless, which has no samples by index",
    "conjugated": r"buffer `turns` is a view that computes .*: add `.resolve_conj\(\)`",
    "negated": r"buffer `turns` is a view that computes .*: add `.resolve_neg\(\)`",
    "few samples": "must be at most the 5 training samples, got 12",
    "empty validation": "`validation` of .* must be a data set with a length of at least 1",
    "metric named loss": "`metrics` names `loss`, which is measured anyway",
    "metric with a slash": "`metrics` names 'f1/macro': letters, digits",
    "metric without direction": "`f1` is better 'up': `min` and `max` are allowed",
    "no data": "made a workload without training",
    "vector metric": "`evaluate` must return scalars, means over the batch; `mae` is none",
    "vector loss": r"`loss` must return a scalar tensor.*got shape \(12,\)",
    "loss without gradient": r"`loss` must return a scalar tensor.*got a float",
    "backward of its own": "replaced a parameter's `.grad`",
    "unnamed metric": r"`evaluate` must return \['loss', 'mae'\].*got \['loss', 'mae', 'mse'\]",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_trained_is_refused_by_name(replica: Train, fault: str):
    with pytest.raises(WorkloadError, match=FAULTS[fault]):
        ours = replica("Broken", fault=fault)
        ours.run(SEGMENT)
        ours.evaluate()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("hoarding", r"Hoarding keeps a list as `0\.weight\.past`"),
        ("global", r"Global keeps `state\['t'\]`, which cannot be put back"),
        ("grouping", "Grouping keeps the tensor `t` of parameter group 0, which cannot be put back"),
    ],
)
def test_an_optimizer_that_keeps_what_cannot_be_put_back_is_refused(replica: Train, kind: str, message: str):
    ours = replica("OddOptimizer", optimizer=OwnOptimizerConfig(), kind=kind)
    ours.snapshot("stage")
    ours.run(SEGMENT)

    with pytest.raises(WorkloadError, match=message):
        ours.snapshot("stage")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("Averaged", "replaced its buffer `average`: change it in place"),
        ("Taught", "replaced its parameter `teacher.weight`.*change it in place"),
    ],
)
def test_a_buffer_or_parameter_that_is_replaced_is_refused(replica: Train, model: str, message: str):
    with pytest.raises(WorkloadError, match=message):
        replica(model, in_place=False).run(SEGMENT)


@pytest.mark.parametrize(
    ("unfreezes", "message"),
    [(True, "trains its parameter `0.weight`, which was frozen"), (False, "froze its parameter `0.weight`")],
)
@pytest.mark.parametrize("begin", [0, SEGMENT.num_steps - 1])
def test_what_the_model_unfreezes_or_freezes_later_is_refused(
    replica: Train, begin: int, unfreezes: bool, message: str
):
    ours = replica("GraduallyTrained", begin=begin, unfreezes=unfreezes)

    with pytest.raises(WorkloadError, match=message):
        for _ in range(2):
            ours.run(SEGMENT)


def test_what_goes_wrong_while_a_module_is_imported_is_the_users_to_see(replica: Train, tmp_path: Path):
    (tmp_path / "broken_import.py").write_text("import torch\ntorch.no_such_function\n")
    workload = OwnWorkload(factory="broken_import:build", path=str(tmp_path))

    with pytest.raises(AttributeError, match="no_such_function"):
        registry.build(workload)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("lbfgs", "LBFGS, which evaluates the loss several times"),
        ("no rate", "Counting, whose parameter group 0 has no `lr` for the learning rate to multiply: give it one"),
        ("", "needs Broken to have"),
    ],
)
def test_an_optimizer_that_cannot_be_stepped_is_refused(replica: Train, fault: str, message: str):
    with pytest.raises(WorkloadError, match=message):
        replica("Broken", optimizer=OwnOptimizerConfig(), fault=fault)


@pytest.mark.parametrize("wrap", [DistributedDataParallel, fully_shard])
@pytest.mark.usefixtures("alone_in_a_group")
def test_a_wrapped_or_sharded_model_is_refused(monkeypatch: pytest.MonkeyPatch, wrap: Callable[..., nn.Module]):
    workload = own_models.Regression()
    bare = workload.model()
    monkeypatch.setattr(workload, "model", lambda: wrap(bare))

    with pytest.raises(WorkloadError, match="return the bare model"):
        models.build(workload, 0)


@pytest.mark.parametrize("wrap", [DistributedDataParallel, fully_shard])
def test_a_model_that_distributes_itself_is_told_to_stay_bare(monkeypatch: pytest.MonkeyPatch, wrap: Any):
    workload = own_models.Regression()
    bare = workload.model()
    monkeypatch.setattr(workload, "model", lambda: wrap(bare))

    with pytest.raises(WorkloadError, match="return the bare model"):
        models.build(workload, 0)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("no_such_module:build", "there is no module `no_such_module` in `workload.path`"),
        ("own_models:no_such_name", "module `own_models` has no `no_such_name`"),
        ("own_models:nothing", "must return a trainers.workload.Workload, got NoneType"),
        (
            "own_models:Broken",
            r"`workload.params` do not suit `own_models:Broken`: missing a required argument: 'fault'",
        ),
    ],
)
def test_a_factory_that_makes_no_workload_is_refused(factory: str, message: str):
    config = ReplicaConfig(workload=OwnWorkload(factory=factory, path=HERE), optimizer=PLAIN, exchange=NoneConfig())

    with pytest.raises(WorkloadError, match=message):
        Replica(config, 0, 1, device="cpu")
