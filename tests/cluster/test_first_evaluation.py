"""A run whose objective is not finite before its first step: refused, unless it may become finite."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.cluster import trial
from service.wire.records import TrialFinished
from tests.support.small_trials import Memory, digits_trial
from trainers.segment import Evaluation
from trainers.workload import WorkloadError

Train = Callable[..., TrialFinished]


@pytest.fixture
def train(tmp_path: Path, arithmetic_group: Callable[..., Any]) -> Train:
    def train(*, finite_from: float, **group_options: Any) -> TrialFinished:
        """Train a run whose validation loss is not a number before so many steps."""
        group, sink = arithmetic_group(**group_options), Memory()
        evaluate = group.evaluate

        def evaluate_late(*, averaged: bool = False) -> Evaluation:
            loss = 0.5 if len(group.rates) >= finite_from else math.nan
            return evaluate(averaged=averaged).model_copy(update={"loss": loss})

        group.evaluate = evaluate_late
        spec = digits_trial(controller={"kind": "fixed"}, optimizer={"kind": "sgd"}, budget={"steps": 60})
        trial.train(spec, group, sink, trial_id="t", storage_url=f"file://{tmp_path}")
        return sink.finished

    return train


def test_it_is_refused_before_the_budget_is_spent(train: Train) -> None:
    with pytest.raises(WorkloadError, match="the validation loss, the objective, is nan before the first step and"):
        train(finite_from=math.inf)


def test_it_trains_if_a_few_steps_make_the_objective_finite_and_they_are_discarded(train: Train) -> None:
    finished = train(finite_from=3)

    assert (finished.outcome, finished.bill.steps, finished.validation_loss) == ("completed", 60, 0.5)
    assert [(entry.step, entry.num_steps) for entry in finished.schedule] == [(0, 60)]


def test_if_the_training_loss_is_not_finite_either_the_run_says_that_it_diverged_at_once(train: Train) -> None:
    finished = train(finite_from=math.inf, bad_step=0)

    assert finished.outcome == "diverged"
    assert finished.divergence is not None and finished.divergence.step == 0
