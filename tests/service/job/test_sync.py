"""Sync and partition settings in a job: valid forms and refusals."""

from typing import Any

import pytest

from search.types import Values
from service.cluster import segment_length
from service.cluster.opening import stated_space
from service.job.advice import advice
from service.job.problems import Problem
from service.job.spec import JobSpec
from tests.support.refusals import problems_in
from trainers.methods.sync.stl_sgd.spec import StlSgdConfig

JOB: dict[str, Any] = {
    "workload": {"kind": "digits-mlp"},
    "optimizer": {"kind": "sgd"},
    "budget": {"steps": 1000},
    "controller": {"kind": "fixed"},
}
LOCAL = {"kind": "local_sgd", "period": 8}
STREAMING = {"kind": "streaming_diloco", "period": 8, "fragments": 4}


def spec(**changes: Any) -> JobSpec:
    return JobSpec.model_validate(JOB | changes)


def refused(**changes: Any) -> list[Problem]:
    return problems_in(JOB | changes)


@pytest.mark.parametrize(
    ("sync", "field", "right"),
    [
        (LOCAL | {"period": 0}, "period", "greater than or equal to 1"),
        (LOCAL | {"period": 2.5}, "period", "valid integer"),
        (LOCAL | {"slow_momentum": 1.0}, "slow_momentum", "less than 1"),
        ({"kind": "diloco", "outer_learning_rate": 0.0}, "outer_learning_rate", "greater than 0"),
        ({"kind": "diloco", "outer_momentum": 1.0}, "outer_momentum", "less than 1"),
        ({"kind": "diloco", "slow_momentum": 0.5}, "slow_momentum", "kinds that have it: `local_sgd`"),
        (LOCAL | {"outer_momentum": 0.5}, "outer_momentum", "kinds that have it: `diloco`"),
        ({"kind": "stl_sgd", "first_stage": 0}, "first_stage", "greater than or equal to 1"),
        ({"kind": "stl_sgd", "gamma": 0.0}, "gamma", "greater than 0"),
        ({"kind": "stl_sgd", "growth": "linear"}, "gamma", "needs `gamma`"),
        ({"kind": "stl_sgd", "data": "some"}, "data", "auto, iid, non_iid"),
        ({"kind": "overlap_local_sgd", "pull": 0.0}, "pull", "greater than 0"),
        ({"kind": "vrl_sgd", "slow_momentum": 0.5}, "slow_momentum", "kinds that have it: `local_sgd`"),
        ({"kind": "cocod"}, "kind", "did you mean `cocod_sgd`?"),
        (STREAMING | {"period": 10}, "period", "must be a multiple of `fragments` 4, got 10"),
        (STREAMING | {"period": 2}, "period", "must be a multiple of `fragments` 4, got 2"),
        (STREAMING | {"period": [4, 8]}, "period", "a search of a range does not heed: give one number"),
        (STREAMING | {"overlap_steps": 2}, "overlap_steps", "less than `period` / `fragments`, which is 2, got 2"),
        (STREAMING | {"merge": "mix"}, "mix", "`merge: mix` needs `mix`, a number in [0, 1]"),
        (STREAMING | {"mix": 0.5}, "mix", "`merge: mix` needs `mix`, a number in [0, 1]"),
        (STREAMING | {"merge": "mix", "mix": 1.5}, "mix", "less than or equal to 1"),
        ({"kind": "diloco", "max_z": 0.0}, "max_z", "greater than 0"),
        ({"kind": "diloco", "max_z": 3.0, "warmup_averages": 1}, "warmup_averages", "greater than or equal to 2"),
        ({"kind": "vrl_sgd", "max_z": 3.0}, "max_z", "kinds that have it"),
    ],
    ids=str,
)
def test_a_knob_outside_its_range_is_named(sync: dict[str, Any], field: str, right: str):
    [problem] = refused(sync=sync)

    assert problem.pointer == f"/sync/{field}"
    assert right in problem.message


TOPK = {"kind": "topk", "density": 0.1}


@pytest.mark.parametrize(
    ("sync", "exchange", "optimizer", "said"),
    [
        ("vrl_sgd", TOPK, "sgd", "`vrl_sgd` averages exactly, and `topk` does not"),
        ("cocod_sgd", {"kind": "fp16"}, "sgd", "`cocod_sgd` averages exactly"),
        ("overlap_local_sgd", TOPK, "sgd", "give `exchange: {kind: none}`"),
        ("vrl_sgd", {"kind": "none"}, "schedulefree_sgd", "corrects one iterate"),
        ("vrl_sgd", {"kind": "none"}, "schedulefree_plus", "corrects one iterate"),
        ("local_sgd", {"kind": "dgc", "density": 0.1}, "own", "accumulates the momentum of gradients"),
        ("local_sgd", TOPK | {"memory": "ef21"}, "sgd", "has no plain residual"),
        ("stl_sgd", TOPK | {"lr_corrected": True}, "sgd", "has no plain residual"),
        ("diloco", TOPK | {"memory": "ef21"}, "adamw", "`diloco` compresses differences of parameters"),
        ("local_sgd", {"kind": "signsgd", "lr_corrected": True}, "sgd", "has no plain residual"),
        ("local_sgd", {"kind": "powersgd", "lr_corrected": True}, "sgd", "has no plain residual"),
        ("stl_sgd", {"kind": "signsgd", "feedback": False}, "sgd", "keeps no error"),
        ("local_sgd", {"kind": "qsgd"}, "sgd", "keeps no error"),
    ],
)
def test_what_does_not_go_together_is_refused_with_what_does(sync, exchange, optimizer, said):
    problems = refused(sync={"kind": sync}, exchange=exchange, optimizer={"kind": optimizer})

    assert [problem.pointer for problem in problems] == ["/sync"]
    assert said in problems[0].message and "give" in problems[0].message


@pytest.mark.parametrize("sync", ["local_sgd", "diloco", "streaming_diloco"])
@pytest.mark.parametrize("kind", ["none", "fp16", "adacomp", "onebit", "powersgd", "sparse_loco"])
def test_differences_go_by_exchanges_that_keep_what_they_do_not_send_or_send_every_entry(kind: str, sync: str):
    assert spec(sync={"kind": sync}, exchange={"kind": kind}).sync.kind == sync


@pytest.mark.parametrize("sync", ["diloco", "streaming_diloco"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon", "schedulefree_sgd", "schedulefree_adamw"])
def test_diloco_takes_any_optimizer_inside(optimizer: str, sync: str):
    assert spec(sync={"kind": sync}, optimizer={"kind": optimizer}).sync.kind == sync


def test_an_arm_may_have_a_policy_of_its_own():
    job = spec(arms=[{"name": "a"}, {"name": "b", "sync": LOCAL}])

    assert [trial.replica.sync.kind for trial in job.trials()] == ["every_step", "local_sgd"]


def test_the_fault_of_an_arm_is_at_its_place():
    [problem] = refused(exchange=TOPK, arms=[{"name": "a"}, {"name": "b", "sync": {"kind": "vrl_sgd"}}])

    assert problem.pointer == "/arms/1/sync"


def test_a_range_of_periods_is_an_axis_of_whole_numbers_that_segments_follow():
    job = spec(sync={"kind": "vrl_sgd", "period": [2, 64]}, controller={"kind": "bo"})

    [trial] = job.trials()
    [axis] = stated_space(trial).axes
    assert (axis.name, axis.from_unit(0.4)) == ("period", 8)
    values = Values(learning_rate=0.1, period=8)
    assert segment_length.segment(values, values, 5).period == 8


def test_a_range_of_periods_needs_a_controller_that_searches():
    [problem] = refused(sync={"kind": "vrl_sgd", "period": [2, 64]})

    assert problem.pointer == "/sync/period"


def test_a_search_of_periods_on_data_that_differ_is_advised_against():
    searched = {"sync": LOCAL | {"period": [2, 16]}, "controller": {"kind": "bo"}, "budget": {"seconds": 60}}

    assert advice(spec(**searched)) == ()
    [said] = advice(spec(**searched, partition={"kind": "by_label"}))
    assert "flatters long periods" in said


def test_a_search_of_periods_is_told_that_steps_do_not_count_averages():
    searched = {"sync": LOCAL | {"period": [2, 16]}, "controller": {"kind": "bo"}, "budget": {"steps": 100_000}}

    [said] = advice(spec(**searched))
    assert "`budget.seconds`" in said


DILOCO = {"kind": "diloco", "period": 10, "outer_momentum": 0.9}


@pytest.mark.parametrize("changes", [{}, {"kind": "streaming_diloco", "fragments": 2}], ids=["at once", "streamed"])
def test_a_high_outer_momentum_is_advised_against_where_there_are_few_averages(changes: dict[str, Any]):
    [said] = advice(spec(sync=DILOCO | changes, budget={"steps": 990}))

    assert "room for 99 averages" in said and "give `outer_momentum` 0.5, or 1000 steps" in said


@pytest.mark.parametrize(
    "changes",
    [
        {"budget": {"steps": 1000}},
        {"budget": {"seconds": 60}},
        {"sync": DILOCO | {"outer_momentum": 0.8}, "budget": {"steps": 100}},
        {"partition": {"kind": "by_label"}, "budget": {"steps": 100}},
    ],
    ids=["a hundred averages", "nobody knows how many", "less momentum", "data that differ"],
)
def test_an_outer_momentum_that_may_help_needs_no_advice(changes: dict[str, Any]):
    assert advice(spec(**{"sync": DILOCO} | changes)) == ()


def test_averages_are_counted_by_the_shortest_period_of_a_search():
    searched = {"controller": {"kind": "bo"}, "budget": {"steps": 10_000}}

    few, many = (
        [said for said in advice(spec(sync=DILOCO | {"period": [low, 500]}, **searched)) if "outer_momentum" in said]
        for low in (101, 100)
    )
    assert few and not many


def test_one_worker_is_told_that_it_has_nobody_to_train_apart_from():
    [said] = advice(spec(sync=LOCAL, workers={"count": 1}))

    assert "`sync: {kind: every_step}`" in said


@pytest.mark.parametrize("kind", ["stdlib-lm", "diamonds-mlp"])
def test_samples_without_labels_cannot_be_divided_by_them(kind: str):
    [problem] = refused(workload={"kind": kind}, partition={"kind": "by_label"})

    assert (problem.pointer, problem.value) == ("/partition", "by_label")
    assert f"`{kind}` have none" in problem.message


def test_a_partition_is_part_of_every_training_run():
    job = spec(partition={"kind": "dirichlet", "alpha": 0.3}, sync={"kind": "stl_sgd"})

    [trial] = job.trials()
    assert trial.replica.partition.kind == "dirichlet"
    assert isinstance(trial.replica.sync, StlSgdConfig) and trial.replica.sync.data == "auto"
