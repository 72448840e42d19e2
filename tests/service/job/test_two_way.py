"""Two-way compression in a job: valid forms and refusals."""

from typing import Any

import pytest

from service.job.problems import Problem
from service.job.spec import JobSpec
from tests.support.refusals import problems_in

JOB: dict[str, Any] = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 100}, "controller": {"kind": "fixed"}}
PLAIN = {"kind": "sgd", "momentum": 0.0}


def spec(**changes: Any) -> JobSpec:
    return JobSpec.model_validate(JOB | changes)


def refused(**changes: Any) -> Problem:
    [problem] = problems_in(JOB | changes)
    return problem


@pytest.mark.parametrize(
    ("exchange", "field", "right"),
    [
        ({"kind": "doublesqueeze", "block": 4}, "block", "greater than or equal to 8"),
        ({"kind": "blockwise", "bits": 2}, "bits", "available: 4, 8"),
        ({"kind": "blockwise", "block": 4}, "block", "greater than or equal to 8"),
        ({"kind": "doublesqueeze", "period": 8}, "period", "kinds that have it: `cser`, `liec_sgd`"),
        ({"kind": "dist_ef_sgd", "momentum": 1.0}, "momentum", "less than 1"),
        ({"kind": "cser", "period": 0}, "period", "greater than or equal to 1"),
        ({"kind": "liec_sgd", "period": [8, 64]}, "period", "must be one number, got [8, 64]"),
        ({"kind": "liec"}, "kind", "did you mean `liec_sgd`?"),
    ],
    ids=str,
)
def test_a_knob_outside_its_range_is_named(exchange: dict[str, Any], field: str, right: str):
    problem = refused(exchange=exchange)

    assert problem.pointer == f"/exchange/{field}"
    assert right in problem.message


@pytest.mark.parametrize(
    ("kind", "optimizer", "said"),
    [
        ("liec_sgd", {"kind": "sgd", "momentum": 0.9}, "give `optimizer: {kind: sgd, momentum: 0.0}`"),
        ("liec_sgd", {"kind": "sgd", "momentum": [0.5, 0.9]}, "give `optimizer: {kind: sgd, momentum: 0.0}`"),
        ("liec_sgd", {"kind": "adamw"}, "`adamw` what workers apply apart would not cancel out"),
        ("liec_sgd", {"kind": "lars", "momentum": 0.0}, "would not cancel out"),
        ("liec_sgd", {"kind": "own"}, "would not cancel out"),
        ("cser", {"kind": "schedulefree_sgd"}, "{kind: sgd, momentum: 0.0, weight_decay: 0.0}"),
        ("cser", PLAIN | {"weight_decay": 0.1}, "{kind: sgd, momentum: 0.0, weight_decay: 0.0}"),
    ],
)
def test_an_optimizer_under_which_workers_would_not_come_together_is_refused(kind, optimizer, said):
    changes = {} if isinstance(optimizer.get("momentum"), float) else {"controller": {"kind": "bo"}}
    problem = refused(exchange={"kind": kind}, optimizer=optimizer, **changes)

    assert (problem.pointer, problem.value) == ("/exchange", kind)
    assert said in problem.message and "`exchange: {kind: doublesqueeze}`" in problem.message


def test_clipping_of_gradients_that_are_each_workers_own_is_refused():
    problem = refused(exchange={"kind": "liec_sgd"}, optimizer=PLAIN, clip=1.0)

    assert problem.pointer == "/exchange"
    assert "give `clip: null`" in problem.message
    assert spec(exchange={"kind": "doublesqueeze"}, optimizer=PLAIN, clip=1.0).clip == 1.0


def test_momentum_twice_is_refused_with_the_knob_that_takes_it_away():
    exchange = {"kind": "dist_ef_sgd", "momentum": 0.9}

    assert "or the exchange `momentum: 0`" in refused(exchange=exchange, optimizer={"kind": "sgd"}).message
    assert spec(exchange=exchange, optimizer=PLAIN).exchange.kind == "dist_ef_sgd"
    assert spec(exchange={"kind": "dist_ef_sgd"}, optimizer={"kind": "sgd"})


@pytest.mark.parametrize("kind", ["dist_ef_sgd", "cser", "liec_sgd"])
def test_averages_of_parameters_do_not_go_through_errors_that_follow_the_rate(kind: str):
    problem = refused(exchange={"kind": kind}, optimizer=PLAIN, sync={"kind": "local_sgd"})

    assert problem.pointer == "/sync"
    assert "follow the learning rate of gradients" in problem.message and "give" in problem.message


@pytest.mark.parametrize("sync", ["local_sgd", "diloco", "stl_sgd"])
@pytest.mark.parametrize("kind", ["doublesqueeze", "blockwise"])
def test_averages_of_parameters_go_through_errors_in_units_of_their_own(kind: str, sync: str):
    assert spec(exchange={"kind": kind}, sync={"kind": sync}).sync.kind == sync


@pytest.mark.parametrize("sync", ["vrl_sgd", "cocod_sgd", "overlap_local_sgd"])
def test_averages_that_must_be_exact_do_not_go_through_integers(sync: str):
    problem = refused(exchange={"kind": "blockwise"}, sync={"kind": sync})

    assert problem.pointer == "/sync"
    assert "averages exactly" in problem.message or "give `exchange: {kind: none}`" in problem.message


def test_integers_go_with_any_optimizer_and_with_clipping():
    for optimizer in ({"kind": "adamw"}, {"kind": "muon"}, {"kind": "sgd", "momentum": 0.9}):
        assert spec(exchange={"kind": "blockwise"}, optimizer=optimizer, clip=1.0).exchange.kind == "blockwise"


def test_the_fault_of_an_arm_is_at_its_place():
    arms = [{"name": "a"}, {"name": "b", "exchange": {"kind": "cser"}}]

    assert refused(optimizer={"kind": "adamw"}, arms=arms).pointer == "/arms/1/exchange"
