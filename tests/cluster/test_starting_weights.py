"""A run takes the place of another job's weights from its brief, and its workers check the file."""

import hashlib
from pathlib import Path

import pytest

from service.cluster.tune_trial import with_weights
from service.job.parts import TrialSpec
from service.wire.records import StartingWeights
from tests.support.small_trials import digits_trial
from trainers.segment import Segment
from trainers.spec.workloads import JobWeights
from trainers.training.replica import Replica
from trainers.workload import WorkloadError

NAMED = JobWeights(job="job-1", arm="tuned")


@pytest.fixture
def trial() -> TrialSpec:
    return digits_trial(workload={"kind": "digits-mlp", "weights_of": NAMED.model_dump()})


def _file(path: Path, sha256: str | None = None) -> StartingWeights:
    return StartingWeights(named=NAMED, url=f"file://{path}", sha256=sha256)


def _replica(trial: TrialSpec) -> Replica:
    return Replica(trial.replica, 0, 1, device="cpu")


def test_a_run_begins_with_the_loss_that_was_exported(trial: TrialSpec, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    source = _replica(digits_trial())
    source.run(Segment(num_steps=20, learning_rate=0.5))
    written = source.export(f"file://{path}")

    started = _replica(with_weights(trial, [_file(path, written.sha256)]))

    assert started.evaluate().loss == source.evaluate().loss
    assert started.evaluate().metrics == source.evaluate().metrics


def test_a_file_that_has_changed_is_refused_and_named_with_both_hashes(trial: TrialSpec, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    written = _replica(digits_trial()).export(f"file://{path}")
    path.write_bytes(path.read_bytes() + b" ")
    now = hashlib.sha256(path.read_bytes()).hexdigest()

    with pytest.raises(WorkloadError, match=f"{path} has changed: its SHA-256 is {now}, and must be {written.sha256}"):
        _replica(with_weights(trial, [_file(path, written.sha256)]))


def test_a_file_that_is_gone_is_refused(trial: TrialSpec, tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"`workload.weights`: .*weights.safetensors is missing"):
        _replica(with_weights(trial, [_file(tmp_path / "weights.safetensors")]))


def test_weights_that_the_service_does_not_find_are_refused(trial: TrialSpec) -> None:
    with pytest.raises(WorkloadError, match="those of job `job-1` are not in its folder on storage"):
        with_weights(trial, [])
    with pytest.raises(WorkloadError, match="`wiretune export job-1 --what weights --out FILE`"):
        _replica(trial)  # outside of a service, as in `wiretune check`


def test_a_run_that_names_no_job_is_left_as_it_is() -> None:
    trial = digits_trial(workload={"kind": "digits-mlp", "weights": "/data/start.safetensors"})

    assert with_weights(trial, []) is trial
