"""A choice among optimizers in a job: valid forms and refusals."""

import json
from typing import Any

import pytest

from service.catalog.methods import mean_traffic_of
from service.job.advice import advice
from service.job.problems import Problem
from service.job.spec import JobSpec
from tests.support.refusals import problems_in

JOB: dict[str, Any] = {
    "workload": {"kind": "digits-mlp"},
    "optimizer": {"kind": "auto", "options": ["sgd", {"kind": "adamw", "learning_rate": 0.002}, "muon"]},
    "budget": {"steps": 3000},
}
AVERAGING = {"kind": "auto", "options": ["adamw", "schedulefree_adamw"]}
WITHOUT_MOMENTUM = {"kind": "auto", "options": [{"kind": "sgd", "momentum": 0}, {"kind": "lars", "momentum": 0}]}
SCHEDULE = {"optimizer": "adamw", "num_steps": 10, "entries": [{"step": 0, "num_steps": 10, "learning_rate": 0.001}]}


def refused(**changes: Any) -> list[Problem]:
    return problems_in(JOB | changes)


def test_an_option_is_a_kind_with_its_defaults_or_a_whole_optimizer():
    options = JobSpec.model_validate(JOB).optimizer.options

    assert [(each.kind, each.learning_rate) for each in options] == [("sgd", 0.1), ("adamw", 0.002), ("muon", 0.01)]


def test_by_default_those_compete_that_go_with_the_same_parts():
    spec = JobSpec.model_validate(JOB | {"optimizer": {"kind": "auto"}})

    assert [each.kind for each in spec.optimizer.options] == ["muon", "adamw"]
    assert not advice(spec)


def test_a_stored_job_reads_back():
    spec = JobSpec.model_validate(JOB)

    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("options", "pointer", "said"),
    [
        (["sgd"], "/optimizer/options", "at least 2"),
        (["sgd", "own"], "/optimizer/options/1/kind", "available: sgd, lars, adamw, muon"),
        (["sgd", "adam"], "/optimizer/options/1/kind", "did you mean `adamw`?"),
        (["sgd", {"kind": "sgd", "momentum": 0}], "/optimizer/options", "distinct kinds"),
        (["sgd", {"kind": "adamw", "weight_decay": [0.1, 0.2]}], "/optimizer/options/1/weight_decay", "one number"),
        (["sgd", {"kind": "adamw", "betas": [[0.8, 0.9], 0.99]}], "/optimizer/options/1/betas/0", "one number"),
        (["sgd", {"kind": "adamw", "learning_rate": 0}], "/optimizer/options/1/learning_rate", "0.00000001, got 0"),
        (["muon", {"kind": "muon", "momentum": [0.8, 0.9]}], "/optimizer/options/1/momentum", "number"),
    ],
    ids=str,
)
def test_options_that_cannot_compete_are_refused_where_they_are(options: list[Any], pointer: str, said: str):
    problems = refused(optimizer={"kind": "auto", "options": options})

    assert problems[0].pointer == pointer
    assert said in problems[0].message


@pytest.mark.parametrize(
    ("changes", "pointer", "said"),
    [
        (
            {"exchange": {"kind": "auto", "options": ["none", "local_sgd 4"]}, "optimizer": WITHOUT_MOMENTUM},
            "/exchange/options",
            "and not for `lars`",
        ),
        ({"exchange": {"kind": "dgc"}}, "/exchange", "momentum: 0"),
        ({"exchange": {"kind": "cser"}}, "/exchange", "under this `sgd`"),
        ({"sync": {"kind": "vrl_sgd"}, "optimizer": AVERAGING}, "/sync", "and `schedulefree_adamw` trains two"),
        ({"blocks": {"kind": "jointspar"}}, "/blocks", "which `adamw` cannot"),
        (
            {"controller": {"kind": "autolrs", "min_learning_rate": 0.01, "max_learning_rate": 1}},
            "/optimizer",
            "give each option its own guess",
        ),
        ({"controller": {"kind": "bo", "transfer": "auto"}}, "/optimizer", "leave out `transfer`"),
        (
            {"controller": {"kind": "bo", "min_learning_rate": 0.01, "max_learning_rate": 1}},
            "/optimizer",
            "give each option its own guess",
        ),
        (
            {"controller": {"kind": "schedule", "schedule": SCHEDULE | {"optimizer": "lars"}}},
            "/controller/schedule/optimizer",
            "mean nothing to `sgd` or `adamw` or `muon`",
        ),
    ],
    ids=str,
)
def test_parts_that_do_not_go_with_one_of_them_are_refused_with_a_way_out(
    changes: dict[str, Any], pointer: str, said: str
):
    problems = refused(**changes)

    assert [problem.pointer for problem in problems] == [pointer]
    assert said in problems[0].message


@pytest.mark.parametrize(
    "changes",
    [
        {"exchange": {"kind": "threshold", "density": [0.003, 0.1]}, "budget": {"seconds": 60}},
        {"exchange": {"kind": "powersgd", "rank": 2}},
        {"clip": 1.0},
        {"controller": {"kind": "sobol"}},
        {"controller": {"kind": "local"}},
        {"controller": {"kind": "autolrs"}},
        {"controller": {"kind": "off"}},
        {"controller": {"kind": "schedule", "schedule": SCHEDULE}},
        {"lanes": {"count": 2, "after": "insurance"}},
        {"workload": {"kind": "digits-mlp", "batch_size": [16, 64]}},
        {"sync": {"kind": "local_sgd"}},
        {"exchange": {"kind": "auto"}, "budget": {"seconds": 60}},
        {"sync": {"kind": "accordion_batch", "epoch_steps": 10}},
        {"exchange": {"kind": "dgc"}, "optimizer": WITHOUT_MOMENTUM},
        {"blocks": {"kind": "jointspar"}, "optimizer": WITHOUT_MOMENTUM},
    ],
    ids=str,
)
def test_parts_that_go_with_each_of_them_go_with_all(changes: dict[str, Any]):
    assert JobSpec.model_validate(JOB | changes)


def test_no_budget_is_too_short_for_one_that_trains_at_its_usual_rate():
    assert not advice(JobSpec.model_validate(JOB | {"budget": {"steps": 60}}))  # Muon, which trains then, needs none


def test_of_exchanges_those_compete_that_go_with_every_optimizer():
    job = JOB | {"exchange": {"kind": "auto"}, "budget": {"seconds": 60}}
    averaging, other = ({"optimizer": {"kind": "auto", "options": [kind, "muon"]}} for kind in ("adamw", "lars"))
    menus = [next(JobSpec.model_validate(job | each).trials()).replica.menu for each in (averaging, other)]

    assert {option.name for option in menus[0]} - {option.name for option in menus[1]} >= {"local_sgd 4"}
    assert not any(option.kind == "local_sgd" for option in menus[1])


def test_the_traffic_of_several_optimizers_is_that_of_the_one_that_sends_most():
    job = JOB | {"sync": {"kind": "local_sgd", "period": 4}}
    plain, several = ({"kind": "schedulefree_adamw"}, {"kind": "auto", "options": ["schedulefree_adamw", "sgd"]})
    replicas = [next(JobSpec.model_validate(job | {"optimizer": each}).trials()).replica for each in (plain, several)]
    sent = [mean_traffic_of(each, ((100,),), 2).bytes for each in replicas]

    assert sent[0] == sent[1] > 0


def test_an_arm_may_let_optimizers_compete_beside_one_that_does_not():
    arms = [{"name": "one", "optimizer": {"kind": "sgd"}}, {"name": "several"}]

    assert JobSpec.model_validate(JOB | {"arms": arms})
    [problem] = refused(arms=[arms[0], {"name": "several", "blocks": {"kind": "jointspar"}}])
    assert (problem.pointer, problem.arms) == ("/arms/1/blocks", ("several",))


def test_the_json_schema_knows_both_forms_of_an_option():
    schema = json.dumps(JobSpec.model_json_schema()["$defs"]["AutoOptimizerConfig"]["properties"]["options"])

    assert '"adamw"' in schema and "AdamWConfig" in schema
