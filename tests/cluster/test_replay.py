"""A searched run and the replay of its schedule end with the same weights, on two real workers."""

from pathlib import Path
from typing import Any

import pytest

from search.schedule_file import Provenance, RecordedSchedule
from service.cluster import trial
from service.job.replay import differences, replayed
from service.job.spec import JobSpec
from service.wire.records import TrialFinished
from tests.support.small_trials import Memory
from trainers.training.process_group import ProcessGroup

JOB = {
    "workload": {"kind": "digits-mlp"},
    "optimizer": {"kind": "sgd", "momentum": [0.5, 0.95]},
    "controller": {"kind": "bo", "max_search_fraction": 0.4},
    "budget": {"steps": 137},
    "objective": {"every": 13},
    "checkpoint": {"export": "last"},
    "seeds": [3],
}


def _train(spec: JobSpec, folder: Path) -> TrialFinished:
    sink, run = Memory(), next(spec.trials())
    with ProcessGroup(run.replica, 2) as group:
        trial.train(run, group, sink, trial_id="t", storage_url=str(folder))
    [finished] = sink.of(TrialFinished)
    assert isinstance(finished, TrialFinished)
    return finished


def _recorded(spec: JobSpec, finished: TrialFinished) -> RecordedSchedule:
    assert finished.origin is not None
    arm = next(spec.trials())
    return RecordedSchedule(
        optimizer=arm.replica.optimizer.kind,
        num_steps=finished.bill.steps,
        entries=tuple(entry.model_dump() for entry in finished.schedule),
        provenance=Provenance(
            job_id="j", job=spec.model_dump(mode="json"), arm=arm.arm, seed=arm.seed, **finished.origin.model_dump()
        ),
    )


#: Its epochs are as long as those of the largest batches.
EPOCHS = {
    "workload": {"kind": "digits-mlp", "batch_size": [16, 64]},
    "optimizer": {"kind": "sgd"},
    "exchange": {
        "kind": "topk",
        "density": 0.01,
        "levels": {"kind": "accordion", "critical": 0.2, "interval": 2, "follow_decay": False},
    },
}


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param({"exchange": {"kind": "threshold", "density": [0.01, 0.2]}}, id="threshold"),
        pytest.param({"exchange": {"kind": "none"}, "checkpoint": {"export": "average"}}, id="average"),
        pytest.param({"exchange": {"kind": "powersgd", "rank": [1, 4]}}, id="powersgd", marks=pytest.mark.long),
        pytest.param(EPOCHS, id="epochs", marks=pytest.mark.long),
    ],
)
def test_the_replay_of_a_searched_run_ends_with_its_weights_bit_for_bit(tmp_path: Path, parts: Any) -> None:
    spec = JobSpec.model_validate(JOB | parts)
    finished = _train(spec, tmp_path / "first")
    recorded = RecordedSchedule.from_json(_recorded(spec, finished).to_json())
    again = _train(replayed(recorded), tmp_path / "again")

    weights = [next((tmp_path / each).rglob("weights.safetensors")) for each in ("first", "again")]
    assert any(entry.final_learning_rate is not None for entry in finished.schedule)  # there was a ramp to repeat
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert again.origin == finished.origin
    assert again.bill.steps_search == 0 < finished.bill.steps_search
    assert recorded.provenance is not None
    assert "bit for bit" in differences(recorded.provenance, recorded.provenance)
