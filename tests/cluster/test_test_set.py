"""A test set is evaluated once, by the weights that are exported; nothing depends on it."""

from pathlib import Path
from typing import Any

import pytest

from service.cluster import trial
from service.job.parts import TrialSpec
from service.wire.records import MetricPoints, TrialFinished
from tests.support.small_trials import Memory, digits_trial
from trainers.methods.replica_config import ReplicaConfig
from trainers.training.process_group import ProcessGroup
from trainers.training.replica import Replica

MODELS = str(Path(__file__).parents[1] / "trainers")


def _spec(factory: str, **params: Any) -> TrialSpec:
    return digits_trial(
        workload={"factory": f"own_models:{factory}", "path": MODELS, "params": params},
        optimizer={"kind": "sgd", "learning_rate": 0.05},
        exchange={"kind": "none"},
        controller={"kind": "fixed"},
        checkpoint={"export": "best"},
        objective={"every": 5},
        budget={"steps": 20},
    )


def _trained(spec: TrialSpec, folder: Path) -> Memory:
    sink = Memory()
    with ProcessGroup(spec.replica, num_workers=2) as group:
        trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=f"file://{folder}")
    return sink


def _without_test(finished: TrialFinished) -> dict[str, Any]:
    told = finished.model_dump(include={"outcome", "validation_loss", "schedule", "exported_step", "averaged"})
    return told | {"weights": finished.weights_sha256}


def test_the_exported_weights_have_their_own_loss_and_metrics_on_the_test_set(tmp_path: Path) -> None:
    spec = _spec("HeldOut")

    sink = _trained(spec, tmp_path)

    finished = sink.finished
    workload = spec.replica.workload.model_copy(update={"weights": finished.weights_url})
    alone = Replica(ReplicaConfig(**dict(spec.replica) | {"workload": workload}), 0, 1, device="cpu").evaluate(
        on="test"
    )
    assert finished.test == pytest.approx({"loss": alone.loss, **alone.metrics}, rel=1e-6)
    assert alone.num_samples == 70
    assert finished.test["loss"] != finished.validation_loss
    assert not [each for each in sink.of(MetricPoints) if "test" in each.name]  # no curve to choose by


@pytest.mark.parametrize(("fault", "said"), [("", ""), ("narrow", "shapes cannot be multiplied"), ("fatal", "is lost")])
def test_a_test_set_changes_no_result_even_if_it_cannot_be_evaluated(tmp_path: Path, fault: str, said: str) -> None:
    with_test, without = (
        _trained(_spec("HeldOut", fault=fault), tmp_path / "1"),
        _trained(_spec("Regression"), tmp_path),
    )

    assert _without_test(with_test.finished) == _without_test(without.finished)
    assert without.finished.test == {} and without.finished.test_failure is None
    assert (with_test.finished.test == {}) is bool(fault)
    assert said in (with_test.finished.test_failure or "")
    assert bool(with_test.finished.test_failure) is bool(fault)
