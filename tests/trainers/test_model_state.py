"""State inside a model: BatchNorm's statistics, and the generator of dropout."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from trainers.methods.optimizer.spec import ScheduleFreeSgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.local_sgd.spec import LocalSgdConfig
from trainers.methods.sync.shared.differing import differing
from trainers.segment import Segment
from trainers.training import feed, model
from trainers.training.checkpoint import commit_manifest, read_tensors
from trainers.training.model import NUM_BATCHES
from trainers.training.replica import BEFORE_AVERAGE, Replica
from trainers.workloads import registry
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
    monkeypatch.setitem(registry.BUILTIN, "digits-mlp", NormedDigits)
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


def test_a_meeting_that_is_undone_leaves_the_masks_that_come_next(
    make_config: Callable[..., ReplicaConfig], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(registry.BUILTIN, "digits-mlp", NormedDigits)
    losses = []
    for is_undone in (False, True):
        replica = Replica(make_config(sync=LocalSgdConfig(period=4)), 0, 1, device="cpu")
        assert replica.run(SEGMENT, until_average=True).meets
        if is_undone:
            replica.meet()
            replica.restore(BEFORE_AVERAGE)
        replica.meet()
        losses.append(replica.run(SEGMENT).losses)

    assert losses[0] == losses[1]


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


@pytest.fixture
def averaging(make_config: Callable[..., ReplicaConfig], monkeypatch: pytest.MonkeyPatch) -> Replica:
    monkeypatch.setitem(registry.BUILTIN, "digits-mlp", NormedDigits)
    replica = Replica(make_config(optimizer=ScheduleFreeSgdConfig(), accumulate=2), 0, 1, device="cpu")
    replica.run(Segment(num_steps=20, learning_rate=0.5))
    return replica


def test_an_averaged_iterate_has_statistics_of_its_own_from_the_batches_ahead(averaging: Replica, tmp_path: Path):
    averaging.export(f"{tmp_path}/weights.safetensors")

    exported = read_tensors(f"{tmp_path}/weights.safetensors")
    batches = feed.build(averaging.workload, averaging.config, 1)
    places = [feed.Place(averaging.step + index // 2, 0, index % 2) for index in range(NUM_BATCHES)]
    outputs = [
        nn.functional.linear(batches.batch(place, None)[0], exported["0.weight"], exported["0.bias"])
        for place in places
    ]
    means, variances = [output.mean(dim=0) for output in outputs], [output.var(dim=0) for output in outputs]
    torch.testing.assert_close(exported["1.running_mean"], torch.stack(means).mean(dim=0))
    torch.testing.assert_close(exported["1.running_var"], torch.stack(variances).mean(dim=0))


def test_an_averaged_iterate_is_evaluated_with_these_statistics(averaging: Replica, tmp_path: Path):
    averaging.export(f"{tmp_path}/weights.safetensors")
    exported, trained = read_tensors(f"{tmp_path}/weights.safetensors"), dict(averaging.model.named_buffers())
    evaluated = averaging.evaluate().loss

    assert evaluated == pytest.approx(_validation_loss(averaging, exported), rel=1e-5)
    assert evaluated != pytest.approx(_validation_loss(averaging, exported | trained), rel=1e-2)


def _validation_loss(replica: Replica, state: dict[str, torch.Tensor]) -> float:
    model = replica.workload.model().eval()
    model.load_state_dict(state)
    inputs, labels = replica.workload.validation[:]
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(inputs), labels))


def test_taking_the_statistics_disturbs_no_bit_of_training(averaging: Replica):
    averaging.snapshot("stage")
    before = statistics(averaging)
    losses = averaging.run(SEGMENT).losses
    averaging.restore("stage")

    assert averaging.evaluate() == averaging.evaluate()

    assert statistics(averaging) == before
    assert averaging.model.get_submodule("1").momentum == 0.5
    assert averaging.run(SEGMENT).losses == losses


def _differing(buffer: torch.Tensor, tell: Callable[[torch.Tensor], object]) -> list[str]:
    """Return what differs on a rank with this `buffer`, which the first rank can `tell` of its own."""
    node_links: Any = SimpleNamespace(tell=tell, all_reduce_sum=lambda *_: None)
    return differing({"buffer": buffer}, node_links)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    "order", [[1, 0], [1, 0, 3, 2], [1, 0, 2, 3, 5, 4], [*range(1 << 20, 3 << 19), *range(1 << 20)]], ids=len
)
def test_ranks_with_the_same_entries_in_another_order_differ(order: list[int], dtype: torch.dtype):
    entries = torch.tensor([1.0, -1.0, -1.0, 1.0, 2.0, 3.0], dtype=dtype)
    of_the_first = entries.repeat(1 + len(order) // 6)[: len(order)]
    told: list[torch.Tensor] = []

    assert _differing(of_the_first, lambda sums: told.append(sums.clone())) == []
    assert _differing(of_the_first.clone(), lambda sums: sums.copy_(told[0])) == []
    assert _differing(of_the_first[order], lambda sums: sums.copy_(told[0])) == ["buffer"]


def test_persistent_buffers_are_those_of_the_state_under_a_wrapper_that_renames_them_too():
    inside = nn.Sequential(nn.BatchNorm1d(3))
    inside.register_buffer("mask", torch.ones(3), persistent=False)
    net = nn.Sequential(nn.Linear(3, 3), checkpoint_wrapper(inside))

    found = model.persistent_buffers(net)

    assert {*map(id, found.values())} == {*map(id, inside[0].buffers())}
    assert found.keys() < dict(net.named_buffers()).keys()


def test_the_scale_of_a_models_matrices_leaves_out_vectors_and_zeros():
    matrices = [torch.full((3, 2), 0.1), torch.full((4, 2, 2), -0.4), torch.zeros(5, 5), torch.ones(7)]

    num_matrices, scale = model.matrices(matrices) or (0, 0.0)

    assert num_matrices == 2
    assert scale == pytest.approx(0.2)
    assert model.matrices([torch.zeros(2, 2), torch.ones(3)]) is None
