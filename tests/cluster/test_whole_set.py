"""A job ranks its runs by a metric of the whole validation set."""

from pathlib import Path

from service.cluster import trial
from service.wire.records import MetricPoints
from tests.support.small_trials import Memory, digits_trial
from trainers.methods.replica_config import ReplicaConfig
from trainers.training.process_group import ProcessGroup
from trainers.training.replica import Replica

MODELS = str(Path(__file__).parents[1] / "trainers")


def test_the_auc_of_the_exported_weights_is_that_of_one_process(tmp_path: Path) -> None:
    spec = digits_trial(
        workload={"factory": "ranked_models:Ranked", "path": MODELS},
        optimizer={"kind": "sgd", "learning_rate": 0.05},
        exchange={"kind": "none"},
        controller={"kind": "fixed"},
        objective={"metric": "auc", "direction": "max", "every": 5},
        budget={"steps": 20},
    )
    sink = Memory()
    with ProcessGroup(spec.replica, num_workers=2) as group:
        trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=f"file://{tmp_path}")

    workload = spec.replica.workload.model_copy(update={"weights": sink.finished.weights_url})
    alone = Replica(ReplicaConfig(**dict(spec.replica) | {"workload": workload}), 0, 1, device="cpu")
    curve = [value for each in sink.of(MetricPoints) if each.name == "validation_auc" for value in each.values]
    assert sink.finished.validation_metrics["auc"] == alone.evaluate().metrics["auc"] == curve[-1]
    assert len(curve) >= 5
