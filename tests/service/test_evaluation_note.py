"""A report says so if evaluations took a large share of a budget in seconds."""

import pytest

from service.control.results.report import TrialFacts, job_report
from service.job.spec import JobSpec
from service.job.states import JobState
from service.wire.jobs import JobView
from service.wire.records import Bill
from service.wire.trials import Series, TrialView

MOMENT = "2026-01-01T00:00:00Z"


def _notes(seconds_evaluation: float, budget: dict[str, int]) -> tuple[str, ...]:
    """The notes on a trial of 20 seconds."""
    spec = JobSpec.model_validate(
        {"workload": {"kind": "digits-mlp"}, "controller": {"kind": "fixed"}, "budget": budget}
    )
    job = JobView(
        id="job-1", name="n", state=JobState.SUCCEEDED, created_at=MOMENT, started_at=MOMENT, finished_at=MOMENT,
        version=1, verbs=(), labels={}, spec=spec,
    )  # fmt: skip
    arm = spec.arms[0].name
    trial = TrialView(
        trial_id="t", arm=arm, seed=spec.seeds[0], outcome="completed", line="main", backend="gloo", device="cpu",
        step=10, seconds=20.0, learning_rate=0.1, level=None, validation_loss=0.1, validation_metrics={},
        metric_directions={}, weights_url=None,
        bill=Bill(seconds_training=20.0, seconds_evaluation=seconds_evaluation),
    )  # fmt: skip
    curve = Series(
        trial_id="t", arm=arm, seed=spec.seeds[0], name="validation_loss", steps=(0,), seconds=(0.0,), values=(0.1,),
        num_points=1,
    )  # fmt: skip
    return job_report(job, [TrialFacts(trial, curve)]).trials[0].notes


def test_evaluations_that_took_half_of_the_clock_are_noted_with_the_field_that_spaces_them() -> None:
    [note] = _notes(10.0, {"seconds": 20})

    assert "took 50% of the training clock: give `objective.every` 450 instead of 50" in note


def test_evaluations_that_took_the_whole_clock_are_noted_too() -> None:
    [note] = _notes(20.0, {"seconds": 20})

    assert "took 100%" in note


@pytest.mark.parametrize(("seconds", "budget"), [(3.0, {"seconds": 20}), (19.0, {"steps": 10})])
def test_short_evaluations_and_budgets_that_do_not_count_them_are_not_noted(
    seconds: float, budget: dict[str, int]
) -> None:
    assert _notes(seconds, budget) == ()
