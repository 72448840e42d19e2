"""A run that continues with fewer or more workers, in real groups: the loss keeps falling."""

from pathlib import Path
from typing import Any

import pytest

from service.cluster import trial
from service.cluster.resume import Resume
from service.job.parts import TrialSpec
from service.wire.records import Checkpointed, MetricPoints, TrialFinished
from tests.support.small_trials import Memory, digits_trial
from trainers.training.process_group import ProcessGroup

KINDS: dict[str, dict[str, Any]] = {
    "threshold": {"exchange": {"kind": "threshold", "density": 0.02}},
    "dgc": {"exchange": {"kind": "dgc", "density": 0.02}, "optimizer": {"kind": "sgd", "momentum": 0}},
    "powersgd": {"exchange": {"kind": "powersgd", "rank": 2}},
    "ef21": {"exchange": {"kind": "topk", "density": 0.02, "memory": "ef21"}},
}
WAYS = [(1, 3), (2, 4), (3, 2), (4, 1)]


def _train(spec: TrialSpec, num_workers: int, url: str, resume: dict[str, Any] | None = None) -> Memory:
    sink = Memory()
    with ProcessGroup(spec.replica, num_workers, device="cpu") as group:
        trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=url, resume=resume)
    return sink


def _goes_on(kind: str, before: int, after: int, folder: Path) -> None:
    checkpoint = {"every_seconds": 1e-9, "keep": 100}
    fields = {"controller": {"kind": "fixed"}, "checkpoint": checkpoint, "objective": {"every": 20}}
    spec = digits_trial(budget={"steps": 80}, **(fields | KINDS[kind]))
    first = _train(spec, before, f"{folder}/first")
    [half] = [point for point in first.of(Checkpointed) if point.step == 40]

    second = _train(spec, after, f"{folder}/second", half.resume)

    losses = {point.steps[0]: point.values[0] for point in second.of(MetricPoints) if point.name == "validation_loss"}
    trained = [step for point in second.of(MetricPoints) if point.name == "loss" for step in point.steps]
    assert trained == list(range(40, 80))
    assert losses[80] < losses[60] < _validation(first)[20]
    assert losses[80] < 1.5 * _validation(first)[80]
    assert second.of(TrialFinished)[0].bill.steps == 80
    resumes = [Resume.model_validate(point.resume) for point in (half, *second.of(Checkpointed))]
    assert [resume.num_workers for resume in resumes[:2]] == [before, after]
    again, dense = (resume.journal["space"]["dense_bytes"] for resume in resumes[:2])
    assert (again is None) == (dense is None) and (dense is None or again != dense)


def _validation(sink: Memory) -> dict[int, float]:
    points = [point for point in sink.of(MetricPoints) if point.name == "validation_loss"]
    return {point.steps[0]: point.values[0] for point in points}


def test_a_run_goes_on_with_more_workers_and_its_loss_falls(tmp_path: Path) -> None:
    _goes_on("threshold", 2, 3, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("before", "after"), WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_memory_goes_on_with_fewer_and_with_more_workers(
    kind: str, before: int, after: int, tmp_path: Path
) -> None:
    _goes_on(kind, before, after, tmp_path)
