"""Exchanges that return the step direction: which settings they go with, and refusals."""

from typing import Any

import pytest

from service.job.problems import Problem
from service.job.spec import JobSpec
from tests.support.refusals import problems_in

JOB: dict[str, Any] = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 100}}
BY_EXCHANGE = {"optimizer": {"kind": "from_exchange"}}
KINDS = ["demo", "dion", "onebit_adam", "zero_one_adam"]


def refused(**changes: Any) -> Problem:
    [problem] = problems_in(JOB | changes)
    return problem


@pytest.mark.parametrize("kind", KINDS)
def test_the_exchange_and_its_optimizer_make_a_job_with_adamws_defaults(kind: str):
    optimizer = JobSpec.model_validate(JOB | BY_EXCHANGE | {"exchange": {"kind": kind}}).optimizer

    assert (optimizer.learning_rate, optimizer.weight_decay) == (1e-3, 0.01)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "schedulefree_sgd", "own"])
@pytest.mark.parametrize("kind", KINDS)
def test_another_optimizer_is_refused_with_the_one_to_give(kind: str, optimizer: str):
    problem = refused(exchange={"kind": kind}, optimizer={"kind": optimizer})

    assert problem.pointer == "/exchange"
    assert f"`{kind}` returns the direction" in problem.message
    assert "give `optimizer: {kind: from_exchange}`" in problem.message


@pytest.mark.parametrize("exchange", [{"kind": "none"}, {"kind": "powersgd"}, {"kind": "dgc"}, {"kind": "auto"}])
def test_its_optimizer_refuses_an_exchange_that_returns_a_gradient(exchange: dict[str, Any]):
    problem = refused(exchange=exchange, **BY_EXCHANGE)

    assert f"`{exchange['kind']}` returns a mean gradient: give `optimizer: {{kind: adamw}}`" in problem.message


@pytest.mark.parametrize("kind", KINDS)
def test_a_direction_is_not_clipped(kind: str):
    problem = refused(exchange={"kind": kind}, clip=1.0, **BY_EXCHANGE)

    assert "`clip` 1 would shorten that, not a gradient: give `clip: null`" in problem.message


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sync", [{"kind": "local_sgd"}, {"kind": "accordion_batch", "epoch_steps": 10}])
def test_a_policy_that_does_not_step_at_once_is_refused(kind: str, sync: dict[str, Any]):
    problem = refused(exchange={"kind": kind}, sync=sync, **BY_EXCHANGE)

    assert problem.pointer == "/sync"
    assert "give `sync: {kind: every_step}`" in problem.message


def test_it_does_not_compete_with_other_optimizers():
    options = ["sgd", "from_exchange"]

    assert any(
        problem.pointer.startswith("/optimizer/options/1")
        for problem in problems_in(JOB | {"optimizer": {"kind": "auto", "options": options}})
    )
