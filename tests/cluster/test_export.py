"""Which weights a run exports: those of its end, or of its best checkpoint."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.cluster import trial
from service.cluster.trial_ledger import Best, Progress
from service.wire.records import Checkpointed, ScheduleEntry, StageClosed, TrialFinished
from tests.small_trials import Memory, digits_trial
from trainers.segment import Evaluation

LOSSES = {0: 2.0, 30: 1.5, 60: 0.5, 90: 1.0, 120: 0.499}  # by step; then it rises


@pytest.fixture
def train(tmp_path: Path, arithmetic_group: Callable[..., Any]) -> Callable[..., Memory]:
    attempts = itertools.count()

    def train(export: str, *, budget: dict[str, float] | None = None, resume: dict[str, Any] | None = None) -> Memory:
        group, sink = arithmetic_group(), Memory()

        def evaluate() -> Evaluation:
            loss = LOSSES.get(len(group.rates), 3.0)
            return Evaluation(loss=loss, metrics={}, num_samples=10, bytes_sent=({"control": 8},) * 2)

        group.evaluate = evaluate
        spec = digits_trial(
            budget=budget or {"steps": 300},
            checkpoint={"export": export, "keep": 100},
            objective={"every": 30},
            controller={"kind": "fixed"},
        )
        url = f"file://{tmp_path}/{next(attempts)}"
        trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=url, resume=resume)
        return sink

    return train


def _finished(sink: Memory) -> TrialFinished:
    [finished] = sink.of(TrialFinished)
    assert isinstance(finished, TrialFinished)
    return finished


def _steps_behind(weights_url: str | None) -> int:
    """Return how many steps the exported weights were trained: the arithmetic group's state is its rates."""
    path = Path(str(weights_url).removeprefix("file://").removesuffix(".safetensors")) / "state.json"
    return len(json.loads(path.read_text())[1])


@pytest.mark.parametrize("budget", [{"steps": 300}, {"bytes": 310_000}])
def test_the_best_checkpoint_is_exported_where_the_end_is_worse(
    train: Callable[..., Memory], budget: dict[str, float]
) -> None:
    finished = _finished(train("best", budget=budget))

    assert (finished.validation_loss, finished.end_validation_loss, finished.exported_step) == (0.5, 3.0, 60)
    assert sum(entry.num_steps for entry in finished.schedule) == _steps_behind(finished.weights_url) == 60


def test_the_end_is_exported_where_the_job_says_so(train: Callable[..., Memory]) -> None:
    finished = _finished(train("last"))

    assert (finished.validation_loss, finished.end_validation_loss, finished.exported_step) == (3.0, None, None)
    assert _steps_behind(finished.weights_url) == 300


def test_checkpoints_of_a_new_best_are_a_twentieth_of_the_budget_apart(train: Callable[..., Memory]) -> None:
    sink = train("best")

    assert [record.step for record in sink.of(Checkpointed)] == [30, 60]  # 0.499 is no gain worth one


def test_a_run_that_was_cut_off_exports_the_same(train: Callable[..., Memory]) -> None:
    whole = train("best")
    points = whole.of(Checkpointed, StageClosed)

    ends = [_finished(train("best", resume=point.resume)) for point in points]
    assert len(ends) == 3
    assert all(end.schedule == _finished(whole).schedule and end.exported_step == 60 for end in ends)


def test_the_best_stays_the_best_with_its_schedule_when_its_steps_are_taken_back() -> None:
    progress = Progress()
    opened = progress.model_copy(deep=True)
    given = {"learning_rate": 0.1, "level": None, "reason": ""}
    progress.step, progress.schedule = 100, [ScheduleEntry(step=0, num_steps=100, **given)]
    progress.best = Best(checkpoint="file:///there", loss=0.5, step=60)

    progress.rewind_to(opened, num_steps=100)

    assert progress.best is not None and progress.schedule == []
    assert [(entry.step, entry.num_steps) for entry in progress.schedule_to(progress.best)] == [(0, 60)]


def test_a_checkpoint_of_a_state_that_was_not_evaluated_is_never_the_best() -> None:
    progress = Progress()
    progress.note_evaluation(0.5)
    progress.step = 4
    progress.note_checkpoint("file:///there")

    assert progress.best is None
