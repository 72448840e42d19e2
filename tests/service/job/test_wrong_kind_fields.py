"""A field of another kind is refused, with the kinds that have it."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from service.job.problems import Problem
from service.job.spec import JobSpec
from tests.support.refusals import problems_in
from trainers.spec.exchange import SteeredConfig
from trainers.spec.wrong_kind_fields import why_wrong_kind

JOB: dict[str, Any] = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 100}}
TOPK = {"kind": "topk", "density": 0.1}
ACCORDION = {"kind": "accordion", "critical": 0.5}
STEERED = "`threshold`, `topk`, `randomk`, `dgc`, `gtopk`, `powersgd`"
NOT_STEERED = ("none", "fp16", "bf16", "adacomp", "terngrad", "signsgd", "onebit", "doublesqueeze", "cser", "auto")
SPARSE = "`threshold`, `topk`, `randomk`, `dgc`, `gtopk`, `adacomp`"


def refused(**changes: Any) -> Problem:
    [problem] = problems_in(JOB | changes)
    return problem


def subclasses(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for each in model.__subclasses__():
        yield from (each, *subclasses(each))


@pytest.mark.parametrize("kind", NOT_STEERED)
def test_an_exchange_without_a_level_says_which_kinds_take_policies_of_it(kind: str):
    problem = refused(exchange={"kind": kind, "levels": ACCORDION})

    assert problem.pointer == "/exchange/levels"
    assert problem.message == f"`exchange.kind: {kind}` has no `levels`; kinds that have it: {STEERED}"


def test_the_kinds_that_are_named_are_those_whose_models_have_the_field():
    message = refused(exchange={"kind": "fp16", "levels": ACCORDION}).message
    kinds = {
        each.model_fields["kind"].default
        for each in subclasses(SteeredConfig)
        if not each.model_fields["kind"].is_required()
    }

    assert set(re.findall("`([a-z_]+)`", message.partition("have it")[2])) == kinds


@pytest.mark.parametrize(
    ("part", "given", "pointer", "message"),
    [
        (
            "exchange",
            {"kind": "powersgd", "memory": "ef21"},
            "/memory",
            f"has no `memory`; kinds that have it: {SPARSE}",
        ),
        ("exchange", {"kind": "qsgd", "memory": "ef21"}, "/memory", f"has no `memory`; kinds that have it: {SPARSE}"),
        ("sync", {"kind": "cocod_sgd", "slow_momentum": 0.5}, "/slow_momentum", "kinds that have it: `local_sgd`"),
        ("link", {"mode": "measure", "mbps": 8}, "/mbps", "`link.mode: measure` has no `mbps`; modes that have it"),
        ("workload", {"kind": "digits-mlp", "context": 8}, "/context", "kinds that have it: `stdlib-lm`"),
        (
            "exchange",
            TOPK | {"levels": {"kind": "warmup", "steps": 3, "critical": 0.5}},
            "/levels/critical",
            "`levels.kind: warmup` has no `critical`; kinds that have it: `accordion`",
        ),
    ],
    ids=str,
)
def test_a_field_of_other_kinds_is_refused_with_those_kinds(part: str, given: Any, pointer: str, message: str):
    problem = refused(**{part: given})

    assert problem.pointer == f"/{part}{pointer}"
    assert message in problem.message


def test_a_field_that_an_arm_cannot_have_is_refused_at_the_arm():
    problem = refused(arms=[{"name": "a"}, {"name": "b", "exchange": {"kind": "fp16", "levels": ACCORDION}}])

    assert problem.pointer == "/arms/1/exchange/levels"
    assert "`exchange.kind: fp16` has no `levels`" in problem.message


def test_a_field_that_is_something_else_in_this_kind_says_what_it_is_and_whose_takes_what_was_given():
    policy, number = refused(exchange={"kind": "qsgd", "levels": ACCORDION}), refused(exchange=TOPK | {"levels": 8})

    assert policy.pointer == number.pointer == "/exchange/levels"
    assert "must be a whole number in [1, 127] (quantisation levels of a magnitude)" in policy.message
    assert policy.message.endswith(f"kinds whose `levels` is an object: {STEERED}")
    assert number.message.endswith("kinds whose `levels` is no object: `qsgd`")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"exchange": {"kind": "fp16", "levelz": ACCORDION}}, "there is no field `levelz`"),
        ({"budgets": 3}, "there is no field `budgets`"),
        ({"budget": {"steps": 3, "kind": []}}, "there is no field `kind`"),
        ({"exchange": {"kind": "qsgd", "levels": "many"}}, "valid integer"),
    ],
    ids=str,
)
def test_where_no_other_kind_would_do_nothing_is_said_of_kinds(changes: dict[str, Any], message: str):
    told = refused(**changes).message

    assert message in told and "kinds" not in told


@pytest.mark.parametrize("given", [{"a": 1}, None], ids=str)
def test_what_is_neither_a_number_nor_a_pair_is_told_once(given: object):
    assert refused(exchange={"kind": "topk", "density": given}).pointer == "/exchange/density"


def test_an_object_of_no_known_kind_has_no_kinds_to_name():
    assert why_wrong_kind(JobSpec, JOB | {"exchange": {"levels": 8}}, ["exchange", "levels"], 8) is None
