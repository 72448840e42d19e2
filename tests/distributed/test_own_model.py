"""A user's model in a group of real ranks: a refusal, or an error that says whether to retry."""

import errno
from pathlib import Path
from typing import Any

import pytest

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import MuonConfig, OptimizerConfig, SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.workloads import OwnWorkload
from trainers.training.call_results import WorkerFailed
from trainers.training.process_group import ProcessGroup
from trainers.workload import WorkloadError

MODELS = str(Path(__file__).parents[1] / "trainers")


def group(factory: str, *, optimizer: OptimizerConfig | None = None, **params: Any) -> ProcessGroup:
    workload = OwnWorkload(factory=f"own_models:{factory}", params=params, path=MODELS)
    config = ReplicaConfig(workload=workload, optimizer=optimizer or SgdConfig(), exchange=NoneConfig())
    return ProcessGroup(config, 2, device="cpu")


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("weight", "parameter `0.weight`"),
        ("buffer", "buffer `2.features`"),
        ("split", "the split of `training`, the split of `validation`"),
    ],
)
def test_ranks_that_built_different_models_or_data_are_refused_by_name(part: str, name: str) -> None:
    with pytest.raises(WorkloadError, match=rf"built different models or data from one seed \({name} differ\)"):
        group("Unequal", part=part)


@pytest.mark.parametrize("part", ["augmentation", "rounding"])
def test_ranks_whose_samples_are_random_or_whose_tables_are_rounded_otherwise_train(part: str) -> None:
    with group("Unequal", part=part) as ranks:
        assert not ranks.run(Segment(num_steps=1, learning_rate=0.1)).diverged


@pytest.mark.parametrize(
    ("number", "is_passing"),
    [(errno.ENOSPC, True), pytest.param(errno.ENOENT, False, marks=pytest.mark.long)],
)
def test_a_full_disk_may_pass_and_a_missing_file_will_not(number: int, is_passing: bool) -> None:
    with group("Stumbling", number=number) as ranks, pytest.raises(WorkerFailed, match="stumbled") as failed:
        ranks.run(Segment(num_steps=1, learning_rate=0.1))

    assert failed.value.is_passing is is_passing


def test_a_validation_set_smaller_than_the_group_is_evaluated_once() -> None:
    with group("Single") as ranks:
        evaluation = ranks.evaluate()

    assert evaluation.num_samples == 1
    assert evaluation.loss == pytest.approx(evaluation.metrics["mae"] ** 2, rel=1e-5)


def test_all_ranks_evaluate_smaller_batches_if_one_runs_out_of_memory() -> None:
    with group("Large", fits=5) as ranks, group("Large", fits=50) as roomy:
        assert ranks.evaluate().loss == pytest.approx(roomy.evaluate().loss)


def test_weights_that_a_loss_moves_by_its_own_batch_are_refused_by_name() -> None:
    with group("Astray", size=0.1) as ranks:
        ranks.run(Segment(num_steps=4, learning_rate=0.1))

        with pytest.raises(WorkloadError, match=r"workers have different values .* \(`0.weight` differ\)"):
            ranks.evaluate()


@pytest.mark.parametrize(("size", "optimizer"), [(1e-5, SgdConfig()), (0.1, MuonConfig())], ids=["sgd", "muon"])
def test_weights_that_machines_round_differently_are_evaluated(size: float, optimizer: OptimizerConfig) -> None:
    with group("Astray", optimizer=optimizer, size=size) as ranks:
        ranks.run(Segment(num_steps=4, learning_rate=0.1))

        assert ranks.evaluate().num_samples == 50


@pytest.mark.long
def test_loader_processes_work_below_the_ranks_of_a_group() -> None:
    losses = []
    for processes in (0, 1):
        with group("MapStyle", processes=processes) as ranks:
            losses.append(ranks.run(Segment(num_steps=3, learning_rate=0.1)).losses)

    assert losses[0] == losses[1]


def test_a_group_knows_the_models_metrics_and_size() -> None:
    with group("Regression") as ranks:
        assert (dict(ranks.built.metrics), ranks.num_elements) == ({"mae": "min"}, 6 * 8 + 8 + 8 + 1)
        assert ranks.evaluate().metrics.keys() == {"mae"}
