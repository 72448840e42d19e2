"""The exported weights of a run: the last ones, or those of its best checkpoint."""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.cluster import trial
from service.cluster.objective import judge_by
from service.cluster.resume import Resume
from service.cluster.trial_ledger import Best, TrialLedger
from service.job.parts import Objective
from service.wire.records import Checkpointed, ScheduleEntry, StageClosed, TrialFinished
from tests.support.small_trials import Memory, digits_trial
from trainers.segment import Evaluation
from trainers.training.call_results import Built
from trainers.workload import WorkloadError

LOSSES = {0: 2.0, 30: 1.5, 60: 0.5, 90: 1.0, 120: 0.499}  # by step; then it rises
ACCURACIES = {0: 0.1, 90: 0.9, 150: 0.8, 240: 0.895}
PATIENT = {"metric": "accuracy", "patience": 5}


@pytest.fixture
def train(tmp_path: Path, arithmetic_group: Callable[..., Any]) -> Callable[..., Memory]:
    attempts = itertools.count()

    def train(
        export: str,
        *,
        budget: dict[str, float] | None = None,
        resume: dict[str, Any] | None = None,
        objective: dict[str, Any] | None = None,
        every_seconds: float = 60.0,
    ) -> Memory:
        group, sink = arithmetic_group(), Memory()
        group.built = Built(metrics={"accuracy": "max"})

        def evaluate(*, averaged: bool = False) -> Evaluation:
            step = len(group.rates)
            metrics = {"accuracy": ACCURACIES.get(step, 0.5)}
            return Evaluation(
                loss=LOSSES.get(step, 3.0), metrics=metrics, num_samples=10, bytes_sent=({"control": 8},) * 2
            )

        group.evaluate = evaluate
        spec = digits_trial(
            budget=budget or {"steps": 300},
            checkpoint={"export": export, "keep": 100, "every_seconds": every_seconds},
            objective={"every": 30} | (objective or {}),
            controller={"kind": "fixed"},
        )
        url = f"file://{tmp_path}/{next(attempts)}"
        trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=url, resume=resume)
        return sink

    return train


def _steps_behind(weights_url: str | None) -> int:
    """Return how many steps the exported weights were trained: the arithmetic group's state is its rates."""
    path = Path(str(weights_url).removeprefix("file://").removesuffix(".safetensors")) / "state.json"
    return len(json.loads(path.read_text())[1])


@pytest.mark.parametrize("budget", [{"steps": 300}, {"bytes": 310_000}])
def test_the_best_checkpoint_is_exported_where_the_end_is_worse(
    train: Callable[..., Memory], budget: dict[str, float]
) -> None:
    finished = train("best", budget=budget).finished

    assert (finished.validation_loss, finished.end_validation_loss, finished.exported_step) == (0.5, 3.0, 60)
    assert sum(entry.num_steps for entry in finished.schedule) == _steps_behind(finished.weights_url) == 60


def test_bytes_of_the_export_are_on_the_bill(train: Callable[..., Memory]) -> None:
    [finished] = train("last").of(TrialFinished)

    assert finished.bill.bytes_by_purpose["state"] == 1000  # which the group sends for an export alone


def test_the_end_is_exported_where_the_job_says_so(train: Callable[..., Memory]) -> None:
    finished = train("last").finished

    assert (finished.validation_loss, finished.end_validation_loss, finished.exported_step) == (3.0, None, None)
    assert _steps_behind(finished.weights_url) == 300


def test_checkpoints_of_a_new_best_are_a_twentieth_of_the_budget_apart(train: Callable[..., Memory]) -> None:
    sink = train("best")

    assert [record.step for record in sink.of(Checkpointed)] == [30, 60]  # 0.499 is no gain worth one


def test_a_run_that_was_cut_off_exports_the_same(train: Callable[..., Memory]) -> None:
    whole = train("best")
    points = whole.of(Checkpointed, StageClosed)

    ends = [train("best", resume=point.resume).finished for point in points]
    assert len(ends) == 3
    assert all(end.schedule == whole.finished.schedule and end.exported_step == 60 for end in ends)
    assert {(_steps_behind(end.weights_url), _steps_behind(end.last_weights_url)) for end in ends} == {(60, 300)}


def test_the_weights_of_the_end_are_kept_beside_the_best_where_these_are_others(train: Callable[..., Memory]) -> None:
    finished, last = train("best").finished, train("last").finished

    assert (_steps_behind(finished.weights_url), _steps_behind(finished.last_weights_url)) == (60, 300)
    assert (_steps_behind(last.weights_url), last.last_weights_url) == (300, None)


def test_a_metric_that_is_better_higher_says_which_state_is_the_best(train: Callable[..., Memory]) -> None:
    finished = train("best", objective={"metric": "accuracy"}).finished

    assert (finished.exported_step, finished.validation_metrics) == (90, {"accuracy": 0.9})
    assert (finished.end_validation_metrics, finished.end_validation_loss) == ({"accuracy": 0.5}, 3.0)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ({"metric": "f1"}, "measures `loss` or `accuracy`, got `objective.metric: f1`"),
        ({"metric": "accuracy", "direction": "min"}, "`accuracy` is better max"),
    ],
)
def test_a_metric_that_the_workload_does_not_measure_ends_the_run_with_the_names_of_those_that_it_does(
    objective: dict[str, str], message: str
) -> None:
    with pytest.raises(WorkloadError, match=re.escape(message)):
        judge_by(Objective.model_validate(objective), {"accuracy": "max"})


def test_a_run_ends_when_its_patience_does_and_keeps_the_best(train: Callable[..., Memory]) -> None:
    finished = train("best", objective=PATIENT).finished

    assert finished.ended_early and finished.bill.steps == 240  # 5 evaluations after that of step 90
    assert (finished.exported_step, _steps_behind(finished.last_weights_url)) == (90, 240)


@pytest.mark.parametrize(
    ("objective", "num_steps"),
    [
        ({"target": 1.0}, 60),  # losses of 2.0, 1.5, 0.5
        ({"metric": "accuracy", "target": 0.85}, 90),
        ({"target": 2.5}, 0),  # as the weights begin
        ({"target": 0.1}, 300),
    ],
)
def test_a_run_ends_with_the_first_evaluation_at_its_target(
    train: Callable[..., Memory], objective: dict[str, Any], num_steps: int
) -> None:
    finished = train("best", objective=objective).finished

    assert (finished.outcome, finished.bill.steps, finished.at_target) == ("completed", num_steps, num_steps < 300)
    assert _steps_behind(finished.weights_url) == (num_steps if finished.at_target else 60)


def test_a_run_at_its_target_that_was_cut_off_before_its_end_ends_there(train: Callable[..., Memory]) -> None:
    points = train("best", objective={"target": 1.0}, every_seconds=1e-9).of(Checkpointed, StageClosed)

    ends = [train("best", objective={"target": 1.0}, resume=point.resume).finished for point in points]

    assert {(end.bill.steps, end.at_target, _steps_behind(end.weights_url)) for end in ends} == {(60, True, 60)}


def test_patience_looks_for_a_gain_of_min_delta(train: Callable[..., Memory]) -> None:
    objective = {"patience": 3, "min_delta": 1.0}  # 2.0, 1.5, 0.5: the third is better by enough
    finished = train("best", objective=objective).finished

    assert (finished.bill.steps, finished.ended_early) == (150, True)
    assert not train("best", objective={"patience": 20}).finished.ended_early


def test_a_run_that_was_cut_off_has_as_much_patience_left(train: Callable[..., Memory]) -> None:
    whole = train("best", objective=PATIENT, every_seconds=1e-9)  # a checkpoint after every push
    points = whole.of(Checkpointed, StageClosed)

    ends = [train("best", objective=PATIENT, resume=point.resume).finished for point in points]
    assert any(point.resume["progress"]["num_stale"] > 0 for point in points[:-1])
    for end in ends:
        assert (end.schedule, end.exported_step, end.ended_early) == (whole.finished.schedule, 90, True)
        assert (end.bill.steps, _steps_behind(end.weights_url), _steps_behind(end.last_weights_url)) == (240, 90, 240)


def test_a_run_that_ended_early_goes_on_with_a_larger_budget(train: Callable[..., Memory]) -> None:
    closed = train("best", objective=PATIENT).of(StageClosed)[-1]

    finished = train("best", objective=PATIENT, resume=closed.resume, budget={"steps": 600}).finished

    assert finished.bill.steps == 240 + 5 * 30


def test_an_extended_run_exports_a_state_that_is_better_than_those_of_the_smaller_budget(
    train: Callable[..., Memory],
) -> None:
    objective = {"metric": "accuracy"}
    short = train("best", objective=objective, budget={"steps": 60})

    finished = train("best", objective=objective, resume=short.of(StageClosed)[-1].resume).finished

    assert finished.exported_step == 90


@pytest.mark.parametrize("kind", ["fixed", "bo", "local", "autolrs"])
def test_a_run_whose_first_step_fails_tries_no_other_rate(
    kind: str, tmp_path: Path, arithmetic_group: Callable[..., Any]
) -> None:
    sink, spec = Memory(), digits_trial(controller={"kind": kind}, optimizer={"kind": "sgd", "learning_rate": 0.1})

    trial.train(spec, arithmetic_group(limit=-1, patience=0), sink, trial_id="t", storage_url=f"file://{tmp_path}")

    finished, closed = sink.finished, sink.of(StageClosed)
    assert finished.outcome == "diverged" and finished.divergence is not None and finished.divergence.step == 0
    assert len(closed) == 1


@pytest.mark.parametrize("kind", ["bo", "local"])
def test_a_run_with_a_bad_batch_ends_after_three_rates_have_failed_there(
    kind: str, tmp_path: Path, arithmetic_group: Callable[..., Any]
) -> None:
    sink, spec = Memory(), digits_trial(controller={"kind": kind}, budget={"steps": 1000}, optimizer={"kind": "sgd"})

    trial.train(spec, arithmetic_group(bad_step=150), sink, trial_id="t", storage_url=f"file://{tmp_path}")

    finished, closed = sink.finished, sink.of(StageClosed)
    failed = [stage for stage in closed if not stage.num_steps]
    assert finished.outcome == "diverged" and finished.divergence is not None
    assert finished.divergence.step == 150 and len(failed) == 3
    assert len(set(finished.divergence.learning_rates)) == 3
    assert finished.divergence.learning_rates[-1] == finished.divergence.learning_rate
    assert Resume.model_validate(closed[-1].resume).failures


def test_evaluations_of_steps_that_are_taken_back_use_up_patience_too() -> None:
    progress = TrialLedger()
    progress.note_evaluation(0.5)
    opened = progress.model_copy(deep=True)
    progress.step = 30
    progress.note_evaluation(0.6)
    progress.note_evaluation(None)

    progress.rewind_to(opened, num_steps=30)

    assert (progress.num_stale, progress.record, progress.score) == (2, 0.5, 0.5)


def test_the_best_stays_the_best_with_its_schedule_when_its_steps_are_taken_back() -> None:
    progress = TrialLedger()
    opened = progress.model_copy(deep=True)
    given = {"learning_rate": 0.1, "level": None, "reason": ""}
    progress.step, progress.schedule = 100, [ScheduleEntry(step=0, num_steps=100, **given)]
    progress.best = Best(checkpoint="file:///there", score=0.5, step=60)

    progress.rewind_to(opened, num_steps=100)

    assert progress.best is not None and progress.schedule == []
    assert [(entry.step, entry.num_steps) for entry in progress.schedule_to(progress.best)] == [(0, 60)]


def test_a_checkpoint_of_a_state_that_was_not_evaluated_is_never_the_best() -> None:
    progress = TrialLedger()
    progress.note_evaluation(0.5)
    progress.step = 4
    progress.note_checkpoint("file:///there")

    assert progress.best is None
