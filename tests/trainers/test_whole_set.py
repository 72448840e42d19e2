"""Metrics of the whole validation set: what they are computed from, and what is refused by name."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranked_models
import torch

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Segment
from trainers.spec.workloads import OwnWorkload
from trainers.training.rehearsal import rehearse
from trainers.training.replica import Replica
from trainers.workload import WorkloadError

Make = Callable[..., Replica]


def config(name: str, *, params: dict[str, Any] | None = None, **parts: Any) -> ReplicaConfig:
    workload = OwnWorkload(factory=f"ranked_models:{name}", params=params or {}, path=str(Path(__file__).parent))
    return ReplicaConfig(workload=workload, optimizer=SgdConfig(), exchange=NoneConfig(), **parts)


@pytest.fixture
def replica() -> Make:
    """Build one rank alone, of a factory's name and its parameters."""

    def build(name: str, *, average: bool = False, precision: str = "float32", **params: Any) -> Replica:
        return Replica(config(name, params=params, average=average, precision=precision), 0, 1, device="cpu")

    return build


def auc_of(replica: Replica) -> float:
    """Return the AUC of the model as it stands, in one pass."""
    rows = [replica.workload.validation[index] for index in range(len(replica.workload.validation))]
    inputs, labels = (torch.stack(each) for each in zip(*rows, strict=True))
    with torch.no_grad():
        outputs = replica.model(inputs)
    return ranked_models.auc(outputs[:, 1] - outputs[:, 0], labels)


def test_a_metric_is_that_of_the_whole_set_and_no_mean_over_batches(replica: Make):
    ours = replica("Ranked")

    found = ours.evaluate().metrics

    assert found["auc"] == auc_of(ours)
    assert found.keys() == {"auc", "accuracy"}


def test_all_samples_come_back_in_their_order_type_and_shape(replica: Make):
    assert replica("Echo").evaluate().metrics["is_whole"] == 1


def test_the_average_of_the_weights_has_metrics_of_its_own(replica: Make):
    ours = replica("Ranked", average=True)
    ours.run(Segment(num_steps=4, learning_rate=0.02))
    weights = {name: each.clone() for name, each in ours.parts.average.weights().items()}
    ours.run(Segment(num_steps=3, learning_rate=0.5))

    found, averaged = ours.evaluate().metrics["auc"], ours.evaluate(averaged=True).metrics["auc"]
    expected = auc_of(ours)
    ours.model.load_state_dict(weights)

    assert (found, averaged) == (expected, auc_of(ours))
    assert found != averaged


def test_what_a_batch_predicted_before_it_ran_out_of_memory_does_not_count(replica: Make):
    ours = replica("Tight")

    assert ours.evaluate().metrics["is_whole"] == 1
    assert ours.workload.num_calls == 2 + 25


def test_draws_repeat_in_each_evaluation_and_disturb_nothing(replica: Make):
    ours = replica("Drawing")
    before = torch.random.get_rng_state()

    first = ours.evaluate()

    assert first == ours.evaluate()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_nothing_is_computed_of_a_model_whose_loss_is_not_finite(replica: Make):
    found = replica("Diverged").evaluate().metrics

    assert math.isnan(found["is_whole"]) and math.isfinite(found["mae"])


def test_predictions_of_autocast_come_as_float32(replica: Make):
    ours, seen = replica("Ranked", precision="bf16"), dict[str, torch.Tensor]()
    ours.workload.compute_metrics = lambda predictions: seen.update(predictions) or {"auc": 0.5}

    ours.evaluate()

    assert {name: each.dtype for name, each in seen.items()} == {"labels": torch.int64, "scores": torch.float32}


def test_data_under_the_name_of_such_a_method_are_no_such_method(replica: Make):
    assert replica("Apart").evaluate().metrics.keys() == {"mae"}


def test_a_rehearsal_computes_them_too():
    _, found = rehearse(config("Ranked"), 2, lambda doing: None)

    assert 0 < found.validation["auc"] <= 1


FAULTS = {
    "a mean": r"one row for each of the batch's 20 samples; `errors` has shape \(\)",
    "a row too few": r"one row for each of the batch's 20 samples; `errors` has shape \(19,\)",
    "lists": "`predictions` must return dense tensors; `errors` is a list",
    "sparse": "`errors` is a tensor of layout torch.sparse_coo",
    "no name": "`predictions` must return tensors by name, .*; got a Tensor",
    "no tensor": "`predictions` must return tensors by name, .*; got a dict",
    "as wide as the batch": r"rows of the same types and shapes \(pad them .*\(20,\).* and .*\(10,\)",
    "what `evaluate` returns": r"`evaluate` and `compute_metrics` both returned \['mae'\]: leave them out of one",
    "too little": r"`metrics` names \['worst'\], which neither `evaluate` nor `compute_metrics` returned",
    "too much": r"`compute_metrics` returned \['f1'\], and `metrics` names \['mae', 'worst'\]",
    "a text": "`compute_metrics` must return numbers; `worst` is 'much'",
    "a vector": r"`compute_metrics` must return scalars; `worst` has shape \(2,\)",
    "a number": "`compute_metrics` must return numbers by name, .*; got 0.5",
    "now and then": r"`evaluate` must return the same names for every batch: \['loss', 'mae'\] at first",
    "no loss": r"`evaluate` must return \['loss', 'mae', 'worst'\], .*except what `compute_metrics` returns; got",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_used_is_refused_by_name(replica: Make, fault: str):
    ours = replica("Misused", fault=fault)

    with pytest.raises(WorkloadError, match=FAULTS[fault]):
        ours.evaluate()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("OnlyPredictions", "has a method `predictions` and no `compute_metrics`: write both, or neither"),
        ("OnlyComputed", "has a method `compute_metrics` and no `predictions`: write both, or neither"),
        ("Unnamed", "Unnamed has a method `compute_metrics` and no `metrics`"),
    ],
)
def test_a_workload_that_lacks_a_part_is_refused_before_it_trains(replica: Make, name: str, message: str):
    with pytest.raises(WorkloadError, match=message):
        replica(name)
