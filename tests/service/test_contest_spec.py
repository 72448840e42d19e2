"""How a job lets optimizers compete, and what it is refused for."""

import json
from typing import Any

import pytest

from search.types import Values
from service.cluster.warm_up import _stated_space
from service.job.advice import advice
from service.job.problems import Problem
from service.job.spec import JobSpec
from tests.service.refusals import problems_in

JOB: dict[str, Any] = {
    "workload": {"kind": "digits-mlp"},
    "optimizer": {"kind": "auto", "options": ["sgd", {"kind": "adamw", "learning_rate": 0.002}, "muon"]},
    "budget": {"steps": 3000},
}
SCHEDULE = {"optimizer": "adamw", "num_steps": 10, "entries": [{"step": 0, "num_steps": 10, "learning_rate": 0.001}]}


def refused(**changes: Any) -> list[Problem]:
    return problems_in(JOB | changes)


def test_an_option_is_a_kind_with_its_defaults_or_a_whole_optimizer():
    [trial] = JobSpec.model_validate(JOB).trials()
    space = _stated_space(trial)

    guesses = [(each.optimizer, each.learning_rate) for each in space.optimizers]
    assert guesses == [("sgd", 0.1), ("adamw", 0.002), ("muon", 0.01)]
    assert space.opening == Values(learning_rate=0.1, optimizer="sgd")


def test_by_default_those_compete_that_go_with_the_same_parts():
    spec = JobSpec.model_validate(JOB | {"optimizer": {"kind": "auto"}})

    assert [each.kind for each in spec.optimizer.options] == ["muon", "adamw"]
    assert not advice(spec)


def test_a_stored_job_reads_back():
    spec = JobSpec.model_validate(JOB)

    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


def test_a_plain_optimizer_says_nothing_of_others():
    [trial] = JobSpec.model_validate(JOB | {"optimizer": {"kind": "sgd"}}).trials()

    assert _stated_space(trial).optimizers == ()
    assert _stated_space(trial).opening == Values(learning_rate=0.1)


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
        ({"exchange": {"kind": "auto"}, "budget": {"seconds": 60}}, "/optimizer", "not both"),
        ({"exchange": {"kind": "dgc"}}, "/exchange", "momentum: 0"),
        ({"exchange": {"kind": "cser"}}, "/exchange", "under this `auto`"),
        ({"sync": {"kind": "local_sgd"}}, "/sync", "give `sync: {kind: every_step}`"),
        ({"sync": {"kind": "accordion_batch", "epoch_steps": 10}}, "/sync", "give `sync: {kind: every_step}`"),
        ({"blocks": {"kind": "jointspar"}}, "/blocks", "which `auto` cannot"),
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
def test_parts_that_do_not_go_with_a_contest_are_refused_with_a_way_out(
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
    ],
    ids=str,
)
def test_parts_that_do_not_depend_on_the_optimizer_go_with_a_contest(changes: dict[str, Any]):
    assert JobSpec.model_validate(JOB | changes)


def test_a_budget_with_room_for_the_probes_of_one_optimizer_is_advised_against():
    by_probes = JOB | {"controller": {"kind": "bo", "first_search": "always"}}
    [sentence] = advice(JobSpec.model_validate(by_probes | {"budget": {"steps": 300}}))
    enough = int(sentence.split("give ")[1].split()[0])

    assert "`sgd` is trained alone" in sentence
    assert enough > 300 and not advice(JobSpec.model_validate(by_probes | {"budget": {"steps": enough}}))
    assert not advice(JobSpec.model_validate(JOB | {"budget": {"steps": 60}}))  # Muon, which trains then, needs none


def test_an_arm_may_let_optimizers_compete_beside_one_that_does_not():
    arms = [{"name": "one", "optimizer": {"kind": "sgd"}}, {"name": "several"}]

    assert JobSpec.model_validate(JOB | {"arms": arms})
    [problem] = refused(arms=[arms[0], {"name": "several", "sync": {"kind": "local_sgd"}}])
    assert (problem.pointer, problem.arms) == ("/arms/1/sync", ("several",))


def test_the_json_schema_knows_both_forms_of_an_option():
    schema = json.dumps(JobSpec.model_json_schema()["$defs"]["AutoOptimizerConfig"]["properties"]["options"])

    assert '"adamw"' in schema and "AdamWConfig" in schema
