"""A run may end with an average of its weights: when it is looked at, when it is exported, and what a replay makes."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.cluster import trial
from service.wire.records import Checkpointed, StageClosed, TrialFinished
from tests.support.small_trials import Memory, digits_trial
from trainers.segment import Evaluation, Written

#: Losses of the weights and of their average, by step; later ones are those of step 120.
WEIGHTS = {0: 2.0, 30: 1.0, 60: 1.2, 90: 1.1, 120: 1.5}
AVERAGES = {60: 0.9, 90: 0.5, 120: 1.3}

Train = Callable[..., tuple[TrialFinished, list[tuple[int, bool]], Memory]]


@pytest.fixture
def train(tmp_path: Path, arithmetic_group: Callable[..., Any]) -> Train:
    attempts = itertools.count()

    def train(
        export: str = "best", *, steps: int = 300, resume: dict[str, Any] | None = None, **objective: Any
    ) -> tuple[TrialFinished, list[tuple[int, bool]], Memory]:
        group, sink, asked = arithmetic_group(), Memory(), list[tuple[int, bool]]()
        write = group.export

        def evaluate(*, averaged: bool = False) -> Evaluation:
            step = len(group.rates)
            asked.append((step, averaged))
            losses = AVERAGES if averaged else WEIGHTS
            return Evaluation(
                loss=losses.get(step, losses[120]),
                num_samples=10,
                averaged=averaged,
                has_average=step > 0,
                bytes_sent=({"control": 8},) * 2,
            )

        def exported(url: str, *, averaged: bool = False) -> Written:
            written: Written = write(url)
            Path(url.removeprefix("file://")).with_suffix(".averaged").write_text(json.dumps(averaged))
            return written

        group.evaluate, group.export = evaluate, exported
        spec = digits_trial(
            budget={"steps": steps},
            checkpoint={"export": export, "keep": 100},
            objective={"every": 30} | objective,
            controller={"kind": "fixed"},
        )
        url = f"file://{tmp_path}/{next(attempts)}"
        trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=url, resume=resume)
        [finished] = sink.of(TrialFinished)
        assert isinstance(finished, TrialFinished)
        return finished, asked, sink

    return train


def _is_averaged(url: str | None) -> bool:
    file = Path(str(url).removeprefix("file://")).with_suffix(".averaged")
    return bool(json.loads(file.read_text()))


def test_the_average_is_evaluated_where_the_weights_set_no_record(train: Train) -> None:
    _, asked, _ = train()

    assert asked[:6] == [(0, False), (30, False), (60, False), (60, True), (90, False), (90, True)]


def test_the_average_is_evaluated_where_the_weights_improve_by_too_little_to_count(train: Train) -> None:
    _, asked, _ = train(min_delta=1.05, patience=2)

    assert (30, True) in asked  # the weights improved by 1.0


def test_an_average_that_was_the_best_is_exported_from_its_checkpoint(train: Train) -> None:
    finished, _, _ = train()

    assert (finished.validation_loss, finished.exported_step, finished.averaged) == (0.5, 90, True)
    assert finished.end_validation_loss == 1.5
    assert _is_averaged(finished.weights_url) and not _is_averaged(finished.last_weights_url)
    assert sum(entry.num_steps for entry in finished.schedule) == 90
    assert finished.origin is not None and finished.origin.averaged


def test_an_average_that_is_best_at_the_end_is_exported_and_the_weights_are_kept_beside_it(train: Train) -> None:
    finished, _, _ = train(steps=90)

    assert (finished.validation_loss, finished.exported_step, finished.averaged) == (0.5, None, True)
    assert finished.end_validation_loss == 1.1
    assert _is_averaged(finished.weights_url) and not _is_averaged(finished.last_weights_url)
    assert sum(entry.num_steps for entry in finished.schedule) == 90


def test_a_run_that_was_cut_off_exports_the_same_average(train: Train) -> None:
    whole, _, sink = train()
    points = sink.of(Checkpointed, StageClosed)

    assert len(points) > 1
    for point in points:
        finished, _, _ = train(resume=point.resume)
        assert (finished.validation_loss, finished.exported_step, finished.averaged) == (0.5, 90, True)
        assert finished.schedule == whole.schedule


@pytest.mark.parametrize(("export", "loss", "averaged"), [("last", 1.5, False), ("average", 1.3, True)])
def test_a_job_may_ask_for_the_end_or_for_the_average_whatever_was_best(
    train: Train, export: str, loss: float, averaged: bool
) -> None:
    finished, asked, _ = train(export)

    assert (finished.validation_loss, finished.exported_step, finished.averaged) == (loss, None, averaged)
    assert _is_averaged(finished.weights_url) is averaged
    assert {each for _, each in asked[1:-2]} == {averaged}


def test_a_target_that_the_average_reaches_ends_the_run_with_it(train: Train) -> None:
    finished, _, _ = train(target=0.6)

    assert finished.at_target and finished.averaged
    assert (finished.validation_loss, finished.bill.steps) == (0.5, 90)
