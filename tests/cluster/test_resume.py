"""A run that is cut off at any moment ends as if nothing had happened; budgets here read no clock."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.cluster import trial
from service.cluster.checkpoints import remove_strays
from service.cluster.resume import Resume
from service.job.parts import TrialSpec
from service.wire.records import (
    AnyRecord,
    Batch,
    Checkpointed,
    MetricPoints,
    ProbeDone,
    StageClosed,
    StageDecided,
    TrialFinished,
)
from tests.support.small_trials import Memory, digits_trial
from trainers.training.call_results import Built
from trainers.workload import WorkloadError

ARMS: dict[str, dict[str, Any]] = {
    "fixed": {"controller": {"kind": "fixed"}},
    "fixed that diverges": {"controller": {"kind": "fixed"}, "optimizer": {"kind": "sgd", "learning_rate": 60}},
    "cosine": {"controller": {"kind": "cosine"}, "optimizer": {"kind": "sgd", "learning_rate": 0.5}},
    "bo with a cool-down": {
        "controller": {"kind": "bo", "max_search_fraction": 0.5, "cooldown": 0.15},
        "optimizer": {"kind": "sgd"},
    },
    "bo whose patience ends": {
        "controller": {"kind": "bo", "max_search_fraction": 0.5},
        "objective": {"every": 30, "patience": 6},
    },
    "bo that diverges": {
        "controller": {
            "kind": "bo",
            "revisit": "stages",
            "max_search_fraction": 0.5,
            "probe_fraction": 0.01,
            "min_probe_steps": 4,
        },
        "optimizer": {"kind": "schedulefree_sgd", "learning_rate": 3.0},
    },
}
LANES: dict[str, dict[str, Any]] = {
    "bo beside the own schedule": {
        "controller": {"kind": "bo", "max_search_fraction": 0.5},
        "optimizer": {"kind": "sgd"},
        "lanes": {"count": 3, "after": "insurance"},
    },
    "bo with a batch that grows": {
        "controller": {"kind": "bo", "max_search_fraction": 0.5},
        "lanes": {"count": 2, "after": "batch"},
    },
}
BUDGETS: dict[str, dict[str, int]] = {"steps": {"steps": 700}, "bytes": {"bytes": 800_000}}


class Watched(Memory):
    """`watch` sees each record."""

    def __init__(self, watch: Callable[[AnyRecord], None]) -> None:
        super().__init__()
        self.watch = watch

    def report(self, *records: AnyRecord) -> None:
        super().report(*records)
        for record in records:
            self.watch(record)


def _spec(arm: str, budget: str, *, keep: int) -> TrialSpec:
    checkpoint = {"every_seconds": 1e-9, "keep": keep}  # after every push
    job = {"budget": BUDGETS[budget], "checkpoint": checkpoint, "objective": {"every": 30}}
    return digits_trial(**(job | (ARMS | LANES)[arm]))


@pytest.fixture
def train(tmp_path: Path, arithmetic_group: Callable[..., Any]) -> Callable[..., Memory]:
    attempts = itertools.count(1)

    def train(spec: TrialSpec, sink: Memory | None = None, resume: dict[str, Any] | None = None) -> Memory:
        sink, number = sink or Memory(), next(attempts)
        url = f"file://{tmp_path}/attempt-{number}"
        if resume is not None:
            remove_strays(url, "job.tuned.0", number=number, resume=resume)
        limit = 1.5 if spec.controller.kind == "bo" and spec.replica.optimizer.kind != "sgd" else 50.0
        patience = 60 if limit == 1.5 else 7
        group, *spare = [arithmetic_group(limit=limit, patience=patience) for _ in range(spec.lanes.count)]
        trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=url, resume=resume, spare=spare)
        return sink

    return train


def _reported(record: Checkpointed | StageClosed) -> dict[str, Any]:
    """Return what the API gets to resume from: the record by way of its text."""
    text = Batch(stream="driver", sequence=1, records=(record,)).model_dump_json()
    [received] = Batch.model_validate_json(text).records
    assert isinstance(received, Checkpointed | StageClosed)
    return received.resume


CUT_OFF = [
    *itertools.product(ARMS, BUDGETS),
    ("bo beside the own schedule", "bytes"),
    ("bo with a batch that grows", "steps"),
]


@pytest.mark.parametrize(("arm", "budget"), CUT_OFF)
def test_a_run_cut_off_at_any_checkpoint_ends_like_the_undisturbed_one(
    train: Callable[..., Memory], arm: str, budget: str
) -> None:
    spec = _spec(arm, budget, keep=100)
    whole = train(spec)
    points = whole.of(Checkpointed, StageClosed)

    # The last one first: what only later ones go on from is removed.
    ends = [train(spec, resume=_reported(point)).end for point in points[:: -max(1, len(points) // 6)]]

    assert len(ends) >= 2
    assert ends == [whole.end] * len(ends)


def test_the_arm_that_is_meant_to_diverge_in_a_commit_does(train: Callable[..., Memory]) -> None:
    closed = train(_spec("bo that diverges", "steps", keep=1)).of(StageClosed)
    bill = closed[-1].bill

    assert any(stage.num_steps == 0 for stage in closed)
    assert sum(stage.num_steps for stage in closed) == closed[-1].step
    assert bill.steps_taken_back > 0
    assert bill.steps + bill.steps_search + bill.steps_taken_back == 700


def test_an_event_ends_a_commit_of_a_run(train: Callable[..., Memory]) -> None:
    sink = train(_spec("bo with a cool-down", "steps", keep=1))

    *_, before, after = sink.of(StageDecided)
    [closed] = [stage for stage in sink.of(StageClosed) if stage.stage == before.stage]
    assert 200 < closed.step < 300  # soon after the jump at step 200
    assert "the gradient's scale jumped 8x" in after.reason
    assert {probe.stage for probe in sink.of(ProbeDone)} == {0, after.stage}


def test_a_fixed_arm_that_diverges_keeps_nothing_of_the_commit(train: Callable[..., Memory]) -> None:
    sink = train(_spec("fixed that diverges", "steps", keep=1))

    outcome, loss, schedule, _ = sink.end
    assert (outcome, loss, schedule) == ("diverged", 0.0, ())


@pytest.mark.parametrize("every", [1, 5, 30])
def test_a_diverged_state_is_never_evaluated(train: Callable[..., Memory], every: int) -> None:
    spec = _spec("fixed that diverges", "steps", keep=1)
    sink = train(spec.model_copy(update={"objective": spec.objective.model_copy(update={"every": every})}))

    evaluated = [record for record in sink.of(MetricPoints) if record.name == "validation_loss"]
    assert all(point.values == (60.0 * point.steps[0],) for point in evaluated)


@pytest.mark.parametrize("arm", ["cosine", "bo that diverges", "bo beside the own schedule"])
def test_what_a_later_attempt_would_load_is_on_storage_and_old_checkpoints_are_not(
    train: Callable[..., Memory], arm: str
) -> None:
    def watch(record: AnyRecord) -> None:
        if isinstance(record, Checkpointed | StageClosed):
            resume = Resume.model_validate(record.resume)
            kept = {_folder(url) for url in resume.checkpoints}
            assert {_folder(resume.checkpoint), _folder(resume.stage.checkpoint)} <= kept
            if beside := resume.insurance:
                assert _folder(beside["checkpoint"]).is_dir() and _folder(beside["stage"]["checkpoint"]) in kept
            assert all(folder.is_dir() for folder in kept)
            assert all(_folder(url) in kept for url in resume.progress.steady)
            # keep, the newest, the stage's start, what a larger budget goes on from, the best now and then
            most = 2 + 1 + 1 + len(resume.progress.steady) + 2
            assert len(kept) <= most + (resume.insurance is not None)  # whose start is this line's

    spec = _spec(arm, "steps", keep=2)
    first = train(spec, Watched(watch))
    middle = first.of(Checkpointed)[-1]

    second = train(spec, Watched(watch), middle.resume)

    inherited = {_folder(url) for url in Resume.model_validate(middle.resume).checkpoints}
    left = {_folder(url) for url in Resume.model_validate(second.of(StageClosed)[-1].resume).checkpoints}
    assert all(folder.is_dir() == (folder in left) for folder in inherited)


class Lagging(Memory):
    """Stores a checkpoint only when it is asked for the third time whether it has."""

    def __init__(self) -> None:
        super().__init__()
        self.known: list[Resume] = []
        self.num_looks = self.num_met = 0

    def is_clear(self) -> bool:
        self.num_looks += 1
        if is_stored := self.num_looks % 3 == 0:
            self.known = [Resume.model_validate(each.resume) for each in self.of(Checkpointed, StageClosed)]
        return is_stored

    def flush(self, *records: AnyRecord) -> None:
        for resume in self.known[-1:]:  # what an attempt that began now would ask for
            assert _folder(resume.checkpoint).is_dir() and _folder(resume.stage.checkpoint).is_dir()
            self.num_met += resume.checkpoint != resume.stage.checkpoint
        self.report(*records)
        self.num_looks = 2
        self.is_clear()


def test_a_checkpoint_stays_until_the_api_knows_a_later_one(train: Callable[..., Memory]) -> None:
    sink = Lagging()
    train(_spec("bo that diverges", "steps", keep=1), sink)

    assert sink.num_met > 1


def _folder(url: str) -> Path:
    return Path(url.removeprefix("file://"))


def test_a_commit_whose_waits_nobody_measured_is_gone_on_with_also_where_null_was_written_for_them(
    train: Callable[..., Memory],
) -> None:
    spec = _spec("bo with a cool-down", "steps", keep=100)
    whole = train(spec)
    within = [each.resume for each in whole.of(Checkpointed) if each.resume["open_commit"] is not None]
    points = [json.dumps(each) for each in within if '"NaN"' in json.dumps(each)]

    written = json.loads(points[len(points) // 2].replace('"NaN"', "null"))

    assert train(spec, resume=written).end == whole.end


def test_a_record_of_an_earlier_release_is_gone_on_with(train: Callable[..., Memory], tmp_path: Path) -> None:
    stored = json.loads((Path(__file__).parent / "resume_record.json").read_text())  # within stage 1 of "steps"
    resume = json.loads(json.dumps(stored["resume"]).replace("file:///storage", f"file://{tmp_path}"))
    for name, state in stored["states"].items():
        (tmp_path / "job.tuned.0" / name).mkdir(parents=True)
        (tmp_path / "job.tuned.0" / name / "state.json").write_text(json.dumps(state))

    [finished] = train(_spec("bo with a cool-down", "steps", keep=100), resume=resume).of(TrialFinished)

    bill = finished.bill
    assert finished.outcome == "completed"
    assert bill.steps + bill.steps_search + bill.steps_taken_back == 700


def test_a_job_does_not_resume_on_another_model_or_other_data(
    train: Callable[..., Memory], arithmetic_group: Callable[..., Any], tmp_path: Path
) -> None:
    spec = _spec("cosine", "steps", keep=1)
    resume = train(spec).of(Checkpointed)[0].resume
    group = arithmetic_group()
    group.built = Built(fingerprint="of an edited model")

    with pytest.raises(WorkloadError, match="not those that this job began with"):
        trial.train(spec, group, Memory(), trial_id="t", storage_url=f"file://{tmp_path}/later", resume=resume)
