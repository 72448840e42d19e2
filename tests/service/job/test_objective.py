"""A job's objective must be a metric of its workload, in the direction that the workload states."""

from typing import Any

import pytest

from service.job.parts import Objective
from service.job.spec import JobSpec
from tests.support.refusals import problems_in

BUDGET = {"steps": 10}


def _job(objective: dict[str, Any], kind: str = "digits-mlp") -> dict[str, Any]:
    return {"workload": {"kind": kind}, "budget": BUDGET, "objective": objective}


@pytest.mark.parametrize(
    ("kind", "objective", "pointer", "message"),
    [
        ("digits-mlp", {"metric": "f1"}, "/objective/metric", "measures `loss` or `accuracy`"),
        ("stdlib-lm", {"metric": "accuracy"}, "/objective/metric", "measures `loss` or `bits_per_byte`"),
        ("digits-mlp", {"metric": "accuracy", "direction": "min"}, "/objective/direction", "leave `direction` out"),
        ("digits-mlp", {"direction": "max"}, "/objective/direction", "leave `direction` out"),
        ("digits-mlp", {"min_delta": 0.1}, "/objective/min_delta", "give both"),
        ("digits-mlp", {"patience": 0}, "/objective/patience", "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_judged_is_refused_at_its_field(
    kind: str, objective: dict[str, Any], pointer: str, message: str
) -> None:
    [problem] = problems_in(_job(objective, kind))

    assert problem.pointer == pointer and message in problem.message


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_every_metric_of_the_workload_may_be_the_objective(metric: str) -> None:
    assert JobSpec.model_validate(_job({"metric": metric, "patience": 3})).objective.metric == metric


def test_the_metrics_of_a_factory_are_for_its_workers_to_check() -> None:
    job = {"workload": {"factory": "mine:build"}, "budget": BUDGET, "objective": {"metric": "f1"}}

    assert JobSpec.model_validate(job).objective.metric == "f1"


def test_a_job_of_an_earlier_release_reads_as_the_same_job_now() -> None:
    assert Objective.model_validate({"metric": "loss", "direction": "min"}) == Objective()
