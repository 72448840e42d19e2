"""Level policies in a job: valid forms and refusals."""

from typing import Any

import pytest

from service.job.advice import advice
from service.job.problems import Problem
from service.job.spec import JobSpec
from tests.support.refusals import problems_in

JOB: dict[str, Any] = {
    "workload": {"kind": "digits-mlp"},
    "optimizer": {"kind": "sgd"},
    "budget": {"seconds": 60},
    "controller": {"kind": "fixed"},
}
TOPK: dict[str, Any] = {"kind": "topk", "density": 0.1}
THRESHOLD: dict[str, Any] = {"kind": "threshold", "density": 0.1}
ABSOLUTE: dict[str, Any] = {"kind": "threshold", "search": "absolute", "threshold": 0.1}
POWERSGD: dict[str, Any] = {"kind": "powersgd", "rank": 2}
CAT: dict[str, Any] = {"kind": "cat"}
EMULATED = {"mode": "emulate", "mbps": 100}


def accordion(critical: float, **knobs: Any) -> dict[str, Any]:
    return {"kind": "accordion", "critical": critical} | knobs


def refused(**changes: Any) -> Problem:
    [problem] = problems_in(JOB | changes)
    return problem


@pytest.mark.parametrize(
    ("exchange", "levels", "field", "right"),
    [
        (TOPK, {"kind": "warmup", "steps": 0}, "steps", "greater than or equal to 1"),
        (TOPK, {"kind": "warmup", "steps": 9, "stages": 0}, "stages", "greater than or equal to 1"),
        (TOPK, {"kind": "accordion"}, "critical", "required"),
        (TOPK, accordion(0.5, eta=0), "eta", "greater than 0"),
        (TOPK, accordion(0.5, interval=0), "interval", "greater than or equal to 1"),
        (TOPK, accordion(0.5, epoch_steps=0), "epoch_steps", "greater than or equal to 1"),
        (TOPK, accordion(0.1), "critical", "above the density, 0.1, to send more, got 0.1"),
        (TOPK, accordion(1.5), "critical", "in (0, 1] for a density"),
        (TOPK | {"density": [0.01, 0.2]}, accordion(0.1), "critical", "above the density, 0.2"),
        (POWERSGD, accordion(1), "critical", "above the rank, 2"),
        (POWERSGD, accordion(2.5), "critical", "above the rank, 2, and at most 1024, to send more, got 2.5"),
        (POWERSGD | {"rank": [1, 4]}, accordion(4), "critical", "above the rank, 4"),
        (POWERSGD, accordion(1025), "critical", "at most 1024"),
        (ABSOLUTE, accordion(0.2), "critical", "below the threshold, 0.1"),
        (TOPK, CAT | {"variant": "some"}, "variant", "largest, drawn"),
        (TOPK, CAT | {"cost": {"kind": "time"}}, "cost/kind", "payload, affine, packet, link"),
        (TOPK, CAT | {"cost": {"kind": "packet", "packet_bytes": 0}}, "cost/packet_bytes", "greater than 0"),
        (TOPK, {"kind": "warm-up"}, "kind", "did you mean `warmup`?"),
    ],
    ids=str,
)
def test_a_knob_outside_its_range_is_named(exchange, levels, field: str, right: str):
    is_searched = any(isinstance(value, list) for value in exchange.values())

    problem = refused(exchange=exchange | {"levels": levels}, controller={"kind": "bo" if is_searched else "fixed"})

    assert problem.pointer == f"/exchange/levels/{field}"
    assert right in problem.message


@pytest.mark.parametrize(
    ("exchange", "levels", "said"),
    [
        (POWERSGD, {"kind": "warmup", "steps": 9}, "give `levels: {kind: accordion}`"),
        (ABSOLUTE, {"kind": "warmup", "steps": 9}, "has a threshold: give"),
        (TOPK, {"kind": "calibrated"}, "give `exchange: {kind: threshold, hold: run}`"),
        (THRESHOLD, {"kind": "calibrated"}, "give `search: density` and `hold: run`"),
        (THRESHOLD, CAT, "give `exchange: {kind: topk}`"),
        ({"kind": "dgc"}, CAT, "give `exchange: {kind: topk}`"),
        (TOPK | {"density": [0.1, 0.2]}, CAT, "give one `density`"),
        (TOPK | {"scope": "layer"}, CAT, "give `scope: bucket`"),
        (TOPK, CAT | {"variant": "drawn"}, "give `memory: none`"),
    ],
    ids=str,
)
def test_levels_that_do_not_suit_an_exchange_are_refused_with_what_does(exchange, levels, said: str):
    optimizer = {"kind": "sgd", "momentum": 0.0 if exchange["kind"] == "dgc" else 0.9}
    controller = {"kind": "bo" if isinstance(exchange.get("density"), list) else "fixed"}

    problem = refused(exchange=exchange | {"levels": levels}, optimizer=optimizer, controller=controller)

    assert problem.pointer == "/exchange/levels"
    assert said in problem.message


@pytest.mark.parametrize("kind", ["none", "adacomp", "onebit"])
def test_an_exchange_without_a_level_has_none_that_changes(kind: str):
    problem = refused(exchange={"kind": kind, "levels": accordion(0.1)})

    assert problem.pointer == "/exchange/levels"


def test_local_updates_have_no_levels_that_follow_gradients():
    problem = refused(exchange=TOPK | {"levels": accordion(0.5)}, sync={"kind": "local_sgd"})

    assert problem.pointer == "/sync" and "about gradients of every step" in problem.message


@pytest.mark.parametrize("exchange", [TOPK, {"kind": "none"}, {"kind": "qsgd"}, POWERSGD], ids=str)
def test_batches_grow_with_any_exchange_whose_level_stays(exchange):
    growing = {"kind": "accordion_batch", "factor": 4}

    job = JobSpec.model_validate(JOB | {"exchange": exchange, "sync": growing})

    assert job.sync.kind == "accordion_batch"


def test_either_the_batch_changes_or_the_level():
    problem = refused(exchange=TOPK | {"levels": accordion(0.5)}, sync={"kind": "accordion_batch"})

    assert problem.pointer == "/sync" and "give `levels: {kind: static}`" in problem.message


@pytest.mark.parametrize("budget", [{"steps": 1000}, {"bytes": 10**9}])
def test_without_seconds_in_the_budget_no_link_is_measured(budget):
    measured = {"exchange": TOPK | {"levels": CAT}, "budget": budget}

    problem = refused(**measured)

    assert problem.pointer == "/exchange/levels/cost"
    assert "`cost: {kind: packet}`" in problem.message
    assert JobSpec.model_validate(JOB | measured | {"link": EMULATED})
    stated = TOPK | {"levels": CAT | {"cost": {"kind": "packet"}}}
    assert JobSpec.model_validate(JOB | measured | {"exchange": stated})


def test_the_clock_of_an_arm_is_refused_at_its_place():
    arms = [{"name": "a"}, {"name": "b", "exchange": TOPK | {"levels": CAT}}]

    assert refused(arms=arms, budget={"steps": 100}).pointer == "/arms/1/exchange/levels/cost"


@pytest.mark.parametrize(
    ("controller", "optimizer", "words"),
    [
        ("cosine", "sgd", "`cosine` lowers it in every step"),
        ("off", "sgd", "`off` lowers it in each of the last 50% of the steps"),
        ("bo", "sgd", "`bo` lowers it in some of its probes and in each of the last 50% of the steps"),
        ("bo", "schedulefree_sgd", "`bo` lowers it in some of its probes, in which"),
    ],
)
def test_a_rate_that_falls_often_is_advised_against(controller: str, optimizer: str, words: str):
    given = JOB | {"controller": {"kind": controller}, "optimizer": {"kind": optimizer}, "budget": {"seconds": 60}}
    follows_not = TOPK | {"levels": accordion(0.5, follow_decay=False)}

    [said] = advice(JobSpec.model_validate(given | {"exchange": TOPK | {"levels": accordion(0.5)}}))

    assert words in said and "give `follow_decay: false`" in said
    assert advice(JobSpec.model_validate(given | {"exchange": follows_not})) == ()


def test_a_level_that_is_not_in_force_while_it_is_searched_is_advised_against():
    levels = accordion(0.5, follow_decay=False)
    given = JOB | {"controller": {"kind": "bo"}, "budget": {"seconds": 60}}

    [said] = advice(JobSpec.model_validate(given | {"exchange": TOPK | {"density": [0.01, 0.2], "levels": levels}}))

    assert "in its first 11 epochs" in said and "give one density" in said
