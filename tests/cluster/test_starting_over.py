"""A run that learns its data by heart starts over: from its first step, with all that it took on the bill."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from search.bayesian import controller
from service.cluster import trial
from service.wire.records import Checkpointed, StageClosed, TrialFinished
from tests.support.small_trials import Memory, digits_trial
from trainers.segment import Evaluation

Train = Callable[..., tuple[TrialFinished, Memory]]


@pytest.fixture
def train(tmp_path: Path, arithmetic_group: Callable[..., Any]) -> Train:
    """Train a model that is best after 50 steps, and learns its data by heart at the rate that is picked."""
    picked = list[float]()

    def train(resume: dict[str, Any] | None = None, **fields: Any) -> tuple[TrialFinished, Memory]:
        group, sink = arithmetic_group(), Memory()

        def evaluate(*, averaged: bool = False) -> Evaluation:
            step = len(group.rates)
            picked.extend(group.rates[:1])
            is_fast = bool(picked) and max(group.rates, default=0.0) > 0.5 * picked[0]
            loss = 9.0 if step < 50 else 7.0 + step / 1000 if is_fast else 8.0 - step / 1000
            return Evaluation(loss=loss, num_samples=10, bytes_sent=({"control": 8},) * 2)

        group.evaluate = evaluate
        job = {
            "optimizer": {"kind": "sgd", "learning_rate": 1.0},
            "budget": {"steps": 1000},
            "checkpoint": {"export": "best", "keep": 100},
        }
        spec = digits_trial(**(job | fields))
        trial.train(spec, group, sink, trial_id="job.tuned.0", storage_url=f"file://{tmp_path}", resume=resume)
        [finished] = sink.of(TrialFinished)
        assert isinstance(finished, TrialFinished)
        return finished, sink

    return train


def closed(sink: Memory) -> list[StageClosed]:
    return [each for each in sink.of(StageClosed) if isinstance(each, StageClosed)]


def test_its_steps_are_taken_back_and_its_best_state_is_exported_with_the_schedule_that_led_there(train: Train):
    finished, sink = train()

    bill, back = finished.bill, [each for each in closed(sink) if each.step == 0]
    assert len(back) == 1
    assert bill.steps_taken_back == max(each.resume["progress"]["bill"]["steps_taken_back"] for each in back) > 0
    assert bill.steps + bill.steps_search + bill.steps_taken_back == 1000
    assert finished.exported_step == 50
    assert sum(entry.num_steps for entry in finished.schedule) == 50


def test_wherever_it_is_cut_off_it_ends_the_same(train: Train):
    whole, sink = train()
    points = sink.of(Checkpointed, StageClosed)

    assert len(points) > 2
    for point in points:
        finished, _ = train(resume=point.resume)
        assert finished.schedule == whole.schedule
        assert finished.bill.steps_taken_back == whole.bill.steps_taken_back
        assert finished.exported_step == whole.exported_step


@pytest.mark.parametrize(
    "fields",
    [
        {"checkpoint": {"export": "last"}},
        {"objective": {"patience": 100}},
        {"controller": {"kind": "fixed"}},
        {"controller": {"kind": "bo", "start_over": False}},
        {"params": {"optimizer.momentum": {"uniform": [0.8, 0.95]}}},
    ],
    ids=["exports the end", "has patience", "does not search", "is told not to", "is judged at rungs"],
)
def test_a_run_goes_on_if_it(train: Train, fields: dict[str, Any]):
    _, sink = train(**fields)

    assert all(each.step > 0 for each in closed(sink))


@pytest.fixture
def falls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the rate of the second stage be far below those before."""
    monkeypatch.setattr(controller, "falls_far", lambda setup, stage, values, spent: stage.index == 1)


def test_a_run_whose_rate_was_far_too_high_begins_again_before_it_commits_to_another(falls: None, train: Train):
    finished, sink = train()
    first, second, *_ = closed(sink)

    assert first.num_steps > 0 and (second.step, second.num_steps) == (0, 0)
    assert finished.bill.steps_taken_back >= first.num_steps
    assert finished.bill.steps + finished.bill.steps_search + finished.bill.steps_taken_back == 1000
    for point in sink.of(Checkpointed, StageClosed):
        resumed, _ = train(resume=point.resume)
        assert resumed.schedule == finished.schedule
        for name in ("steps", "steps_search", "steps_taken_back", "bytes_sent"):
            assert getattr(resumed.bill, name) == getattr(finished.bill, name)
