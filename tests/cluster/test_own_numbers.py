"""A run records the numbers that its workload returns with the loss, and its workers' memory."""

from pathlib import Path
from typing import Any

import pytest

from service.cluster import trial
from service.job.parts import TrialSpec
from service.wire.records import Checkpointed, MetricPoints
from tests.support.small_trials import Memory, digits_trial
from trainers.training.process_group import ProcessGroup

MODELS = str(Path(__file__).parents[1] / "trainers")


def _spec(factory: str) -> TrialSpec:
    return digits_trial(
        workload={"factory": factory, "path": MODELS},
        optimizer={"kind": "sgd", "learning_rate": 0.05},
        exchange={"kind": "none"},
        controller={"kind": "fixed"},
        objective={"every": 10},
        budget={"steps": 40},
        checkpoint={"every_seconds": 0.001, "keep": 100},
    )


def _series(sink: Memory, name: str) -> dict[int, float | None]:
    found = [each for each in sink.of(MetricPoints) if each.name == name]
    return {step: value for each in found for step, value in zip(each.steps, each.values, strict=True)}


def _trained(spec: TrialSpec, folder: Path, resume: dict[str, Any] | None = None) -> Memory:
    sink = Memory()
    with ProcessGroup(spec.replica, num_workers=2) as group:
        trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=f"file://{folder}", resume=resume)
    return sink


def test_a_run_records_an_own_number_for_every_step_and_the_same_ones_after_a_resume(tmp_path: Path) -> None:
    spec = _spec("numbered_models:Numbered")

    whole = _trained(spec, tmp_path)
    middle = next(each for each in whole.of(Checkpointed) if 0 < each.step < 40)
    resumed = _trained(spec, tmp_path, middle.resume)

    losses, twice = _series(whole, "loss"), _series(whole, "own_twice")
    assert twice == pytest.approx({step: 2 * loss for step, loss in losses.items()}, rel=1e-6)
    assert len(twice) == 40 and set(_series(whole, "own_never").values()) == {None}
    assert _series(resumed, "own_twice") == {step: value for step, value in twice.items() if step >= middle.step}
    assert max(_series(whole, "memory_bytes").values()) == whole.finished.bill.memory_bytes > 2**20


def test_a_run_whose_workload_returns_the_loss_alone_has_no_own_series(tmp_path: Path) -> None:
    found = _trained(_spec("own_models:Regression"), tmp_path)

    assert len(_series(found, "loss")) == 40
    assert not [each.name for each in found.of(MetricPoints) if each.name.startswith("own_")]
