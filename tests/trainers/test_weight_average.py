"""The average of a run's weights: what it is, and that it goes wherever the rest of the state goes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.trainers import own_models
from trainers.methods.optimizer.spec import AdamWConfig, ScheduleFreeSgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.local_sgd.spec import LocalSgdConfig
from trainers.segment import Segment
from trainers.training.checkpoint import commit_manifest
from trainers.training.process_group import ProcessGroup
from trainers.training.replica import Replica
from trainers.training.weight_average import DECAY, EVERY, WeightAverage

MakeConfig = Callable[..., ReplicaConfig]


def averaged(config: ReplicaConfig) -> Replica:
    return Replica(config, 0, 1, device="cpu")


def run(replica: Replica, num_steps: int) -> None:
    replica.run(Segment(num_steps=num_steps, learning_rate=0.1))


def exported(replica: Replica, folder: Path, *, averaged: bool) -> dict[str, Tensor]:
    replica.export(f"file://{folder}/weights.safetensors", averaged=averaged)
    weights: dict[str, Tensor] = load_file(folder / "weights.safetensors")
    return weights


def test_every_fourth_state_moves_it_by_its_share(make_config: MakeConfig, tmp_path: Path):
    replica, expected = averaged(make_config(average=True)), dict[str, Tensor]()
    for number in range(1, 7):
        run(replica, EVERY)
        state = exported(replica, tmp_path, averaged=False)
        share = (DECAY + 1) / (number + DECAY)
        expected = {name: torch.lerp(expected.get(name, now), now, share) for name, now in state.items()}

    found = exported(replica, tmp_path, averaged=True)

    assert not torch.equal(found["0.weight"], state["0.weight"])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_the_average_of_equal_states_is_that_state_to_the_bit(dtype: torch.dtype):
    live = {"weight": torch.randn(7, 3).to(dtype)}
    average = WeightAverage(live)

    for step in range(1, 200):
        average.follow(step)

    assert torch.equal(average.weights()["weight"], live["weight"])


def test_small_shares_of_16_bit_weights_are_not_lost():
    weight = torch.full((5,), 256.0, dtype=torch.bfloat16)
    average = WeightAverage({"weight": weight})
    for number in range(400):
        weight.fill_(256.0 if number < 200 else 258.0)
        average.follow(number * EVERY)

    assert average.weights()["weight"].tolist() == [258.0] * 5


def test_before_its_first_state_the_weights_themselves_are_evaluated(make_config: MakeConfig):
    replica = averaged(make_config(average=True))
    run(replica, EVERY - 1)

    assert replica.evaluate(averaged=True) == replica.evaluate()
    assert not replica.evaluate().has_average


def test_a_checkpoint_before_the_first_step_shows_what_room_later_ones_need(make_config: MakeConfig, tmp_path: Path):
    replica, sizes = averaged(make_config(average=True)), list[int]()
    for name in ("first", "later"):
        replica.save(f"file://{tmp_path}/{name}")
        sizes.append(sum(file.stat().st_size for file in (tmp_path / name).iterdir()))
        run(replica, 2 * EVERY)

    assert sizes[1] < 1.05 * sizes[0]


def test_it_is_evaluated_where_a_loss_with_gradients_of_its_own_computes_the_statistics(make_config: MakeConfig):
    class Penalised(own_models.Sloped):
        def evaluate(self, model: Any, batch: Any) -> dict[str, Any]:
            error = model(batch[0]) - batch[1]
            return {"loss": error.square().mean(), "mae": error.abs().mean()}

    replica = Replica(make_config(average=True), 0, 1, device="cpu", workload=Penalised(functional=False))
    run(replica, EVERY)

    assert replica.evaluate(averaged=True).averaged


def test_training_does_not_see_it(make_config: MakeConfig):
    plain, followed = averaged(make_config()), averaged(make_config(average=True))

    losses = [each.run(Segment(num_steps=9, learning_rate=0.1)).losses for each in (plain, followed)]

    assert losses[0] == losses[1]
    assert followed.evaluate().loss == plain.evaluate().loss != followed.evaluate(averaged=True).loss


def test_schedule_free_which_has_an_average_keeps_no_second_one(make_config: MakeConfig):
    replica = averaged(make_config(average=True, optimizer=ScheduleFreeSgdConfig(learning_rate=0.1)))
    run(replica, 3 * EVERY)

    assert not replica.evaluate().has_average
    assert not replica.parts.average.tensors()


def test_a_snapshot_and_a_checkpoint_lead_to_the_same_average(make_config: MakeConfig, tmp_path: Path):
    config = make_config(average=True, optimizer=AdamWConfig(learning_rate=0.01))
    whole, url = averaged(config), f"file://{tmp_path}/checkpoint"
    run(whole, 10)
    whole.snapshot("stage")
    commit_manifest(url, whole.save(url))
    run(whole, 11)
    expected = exported(whole, tmp_path, averaged=True)

    whole.restore("stage")
    resumed = averaged(config)
    resumed.load(url)
    for replica in (whole, resumed):
        run(replica, 11)
        found = exported(replica, tmp_path, averaged=True)
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_run_of_a_release_without_averages_keeps_none_which_no_replay_could_repeat(
    make_config: MakeConfig, tmp_path: Path
):
    old, url = averaged(make_config()), f"file://{tmp_path}/checkpoint"
    del old.state.shared["average"]  # which earlier releases did not write
    run(old, 10)
    commit_manifest(url, old.save(url))

    config, again = make_config(average=True), f"{url}-again"
    replica = averaged(config)
    replica.load(url)
    run(replica, 6)
    commit_manifest(again, replica.save(again))
    resumed = averaged(config)
    resumed.load(again)
    run(resumed, 6)

    assert not replica.evaluate().has_average
    assert not resumed.evaluate().has_average


def test_states_that_come_at_odd_steps_count_too():
    weight = torch.zeros(3)
    average = WeightAverage({"weight": weight})
    for step in range(3, 1000, 10):  # as averages of workers do after an odd number of steps
        weight.fill_(float(step))
        average.follow(step)

    assert 800 < average.weights()["weight"][0] < 990


@pytest.fixture(scope="module")
def local_updates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two ranks that average every 5 steps, evaluated in the middle of a round."""
    from trainers.spec.workloads import DigitsMlp

    folder = tmp_path_factory.mktemp("local")
    config = ReplicaConfig(
        workload=DigitsMlp(batch_size=16),
        optimizer=AdamWConfig(learning_rate=0.01),
        exchange={"kind": "none"},
        sync=LocalSgdConfig(period=5),
        average=True,
    )
    with ProcessGroup(config, 2) as group:
        group.run(Segment(num_steps=42, learning_rate=0.01))
        found = {"weights": group.evaluate(), "average": group.evaluate(averaged=True)}
        group.export(f"file://{folder}/weights.safetensors", averaged=True)
    return found | {"config": config, "file": load_file(folder / "weights.safetensors")}


def test_under_local_updates_it_is_one_on_all_ranks_and_nothing_is_sent_for_it(local_updates: dict[str, Any]):
    assert "state" in local_updates["weights"].bytes_sent[0]  # the ranks are apart
    assert all("state" not in sent for sent in local_updates["average"].bytes_sent)

    alone = averaged(local_updates["config"].model_copy(update={"average": False}))
    alone.model.load_state_dict(local_updates["file"])
    assert alone.evaluate().loss == pytest.approx(local_updates["average"].loss, rel=1e-6)
    assert local_updates["average"].averaged and not local_updates["weights"].averaged
