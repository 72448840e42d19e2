"""A run under a budget in seconds plans with the time of its evaluations; any other run reads no clock for it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from search.bayesian.setup import SearchSetup
from search.config import BoConfig
from search.space import SearchSpace
from service.cluster import trial
from service.cluster.clock import TrainingClock
from service.cluster.reporter import Stopped
from service.job.parts import TrialSpec
from service.wire.records import AnyRecord, Control, StageClosed, TrialFinished
from tests.support.small_trials import Memory, digits_trial
from trainers.segment import Evaluation, Segment, SegmentResult

STEP_S, EVALUATION_S, LOADING_S = 0.001, 1.0, 30.0
Train = Callable[..., Memory]


class Closing(Memory):
    """Ends the run when its first stage closes."""

    def report(self, *records: AnyRecord) -> None:
        super().report(*records)
        if any(isinstance(record, StageClosed) for record in records):
            raise Stopped(Control.CANCEL, "told to cancel")


@pytest.fixture
def train(tmp_path: Path, arithmetic_group: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Train:
    """Train a run on a clock that only steps and evaluations move."""

    def train(
        *,
        evaluation_s: float = EVALUATION_S,
        loading_s: float = 0.0,
        sink: Memory | None = None,
        resume: Any = None,
        **fields: Any,
    ) -> Memory:
        group, sink = arithmetic_group(), sink or Memory()
        group.now, run, evaluate, loading = 0.0, group.run, group.evaluate, [loading_s]

        def take_steps(segment: Segment) -> SegmentResult:
            group.now += segment.num_steps * STEP_S
            result: SegmentResult = run(segment)
            return result

        def take_time(*, averaged: bool = False) -> Evaluation:
            group.now += evaluation_s + (loading.pop() if loading else 0.0)
            evaluation: Evaluation = evaluate(averaged=averaged)
            return evaluation

        group.run, group.evaluate = take_steps, take_time
        monkeypatch.setattr(TrainingClock, "_now", lambda clock: group.now)
        spec = _spec(**fields)
        trial.train(spec, group, sink, trial_id="t", storage_url=f"file://{tmp_path}", resume=resume)
        return sink

    return train


def _spec(**fields: Any) -> TrialSpec:
    job = {"optimizer": {"kind": "adamw"}, "controller": {"kind": "bo"}, "budget": {"seconds": 20}}
    return digits_trial(**job | fields)


def _space(sink: Memory) -> SearchSpace:
    return SearchSpace.model_validate(sink.of(StageClosed)[-1].resume["journal"]["space"])


def _planned(sink: Memory, **fields: Any) -> float:
    config, budget = _spec(**fields).controller, _spec(**fields).budget
    assert isinstance(config, BoConfig)
    planned = SearchSetup(space=_space(sink), config=config, budget=budget, seed=0).num_steps
    assert planned is not None
    return planned


def _taken(finished: TrialFinished) -> int:
    return finished.bill.steps + finished.bill.steps_search + finished.bill.steps_taken_back


@pytest.mark.parametrize(
    ("seconds", "evaluation_s", "every"),
    [(20, EVALUATION_S, 50), (2, 0.0, 50), (2, 0.001, 50), (2, 0.1, 100), (2, 10.0, 100), (2, 10.0, 3000)],
)
def test_as_many_steps_are_planned_as_are_taken(train: Train, seconds: int, evaluation_s: float, every: int) -> None:
    fields = {"objective": {"every": every}, "budget": {"seconds": seconds}}
    sink = train(evaluation_s=evaluation_s, **fields)

    assert 1 / 2 <= _planned(sink, **fields) / _taken(sink.finished) <= 2


def test_the_first_evaluation_may_take_longer_since_it_loads_data(train: Train) -> None:
    sink = train(loading_s=LOADING_S)

    assert _space(sink).evaluation_s == pytest.approx(EVALUATION_S / 50)


def test_a_run_that_goes_on_plans_as_before(train: Train) -> None:
    cut = Closing()
    with pytest.raises(Stopped):
        train(sink=cut)
    resumed = train(evaluation_s=7.0, resume=cut.of(StageClosed)[-1].resume)

    assert _space(resumed) == _space(cut)


@pytest.mark.parametrize("budget", [{"steps": 600}, {"bytes": 600_000}])
def test_a_budget_without_seconds_is_spent_alike_however_long_evaluations_take(
    train: Train, budget: dict[str, int]
) -> None:
    fast, slow = (train(evaluation_s=seconds, budget=budget) for seconds in (0.0, 50.0))

    assert _space(fast) == _space(slow) and _space(slow).evaluation_s == 0.0
    assert fast.end == slow.end
