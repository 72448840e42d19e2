"""A conflict is reported once: at the part that an arm sets, or else at the job, with the arms concerned."""

from typing import Any

import pytest
from pydantic import ValidationError

from service.job.parts import GIVEN
from service.job.problems import problems_of
from service.job.spec import JobSpec
from tests.support.refusals import problems_in

JOB: dict[str, Any] = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 100}}
PLAIN = {"kind": "sgd", "momentum": 0.0}
#: Parts that do not go together, with the part that is told so.
CONFLICTS: list[tuple[dict[str, Any], str]] = [
    ({"sync": {"kind": "vrl_sgd"}, "exchange": {"kind": "topk", "density": 0.1}}, "sync"),
    ({"blocks": {"kind": "jointspar"}, "optimizer": {"kind": "adamw"}}, "blocks"),
    ({"exchange": {"kind": "cser"}, "optimizer": {"kind": "adamw"}}, "exchange"),
    ({"exchange": {"kind": "dgc"}, "optimizer": {"kind": "sgd", "momentum": 0.9}}, "exchange"),
    ({"exchange": {"kind": "demo"}, "optimizer": {"kind": "adamw"}}, "exchange"),
    ({"exchange": {"kind": "threshold", "density": 0.1}, "optimizer": {"kind": "from_exchange"}}, "exchange"),
    ({"blocks": {"kind": "jointspar"}, "optimizer": {"kind": "auto"}}, "blocks"),
    ({"exchange": {"kind": "topk", "density": [0.01, 0.1]}, "controller": {"kind": "fixed"}}, "exchange/density"),
    ({"optimizer": {"kind": "auto"}, "controller": {"kind": "bo", "transfer": "auto"}}, "optimizer"),
    (
        {
            "optimizer": PLAIN | {"learning_rate": 1.0},
            "controller": {"kind": "bo", "min_learning_rate": 0.01, "max_learning_rate": 0.1},
        },
        "optimizer/learning_rate",
    ),
]
cases = pytest.mark.parametrize(("parts", "place"), CONFLICTS, ids=[place for _, place in CONFLICTS])


@cases
def test_a_conflict_of_all_arms_is_told_once_and_names_none(parts: dict[str, Any], place: str) -> None:
    [problem] = problems_in(JOB | parts | {"arms": [{"name": "one"}, {"name": "other"}]})

    assert (problem.pointer, problem.arms) == (f"/{place}", ())


@cases
def test_a_conflict_of_an_arms_own_parts_is_told_there(parts: dict[str, Any], place: str) -> None:
    [problem] = problems_in(JOB | {"arms": [{"name": "plain"}, {"name": "wrong", **parts}]})

    assert (problem.pointer, problem.arms) == (f"/arms/1/{place}", ("wrong",))
    assert str(problem) == f"/arms/1/{place}: arm `wrong`: {problem.message}"


@cases
def test_a_conflict_with_the_jobs_part_is_told_at_the_job_with_the_arms_that_have_it(
    parts: dict[str, Any], place: str
) -> None:
    told_at = place.split("/")[0]
    others = {name: part for name, part in parts.items() if name != told_at}
    arms = [{"name": "plain", told_at: None}, {"name": "one", **others}, {"name": "other", **others}]
    harmless = {"sync": {"kind": "every_step"}, "blocks": {"kind": "all"}, "exchange": {"kind": "none"}}
    arms[0][told_at] = harmless.get(told_at, PLAIN)

    [problem] = problems_in(JOB | {told_at: parts[told_at], "arms": arms})

    assert (problem.pointer, problem.arms) == (f"/{place}", ("one", "other"))


def test_a_batch_of_a_schedule_that_the_data_are_too_few_for_is_told() -> None:
    entries = [
        {"step": 0, "num_steps": 50, "learning_rate": 0.1, "values": {"batch_size": 64}},
        {"step": 50, "num_steps": 50, "learning_rate": 0.1, "values": {"batch_size": 1024}},
    ]
    schedule = {"format": "wiretune.schedule/1", "optimizer": "sgd", "num_steps": 100, "entries": entries}
    again = {"name": "again", "controller": {"kind": "schedule", "schedule": schedule}}
    sized = {"workload": {"kind": "digits-mlp", "batch_size": 32}, "optimizer": PLAIN}

    [problem] = problems_in(JOB | sized | {"arms": [{"name": "tuned"}, again]})

    assert problem.pointer == "/workers/count"
    assert "a step of a schedule takes 1024 samples" in problem.message


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("diloco", {"sync": {"kind": "diloco"}}),
        ("accordion_batch", {"sync": {"kind": "accordion_batch"}, "optimizer": PLAIN}),
        ("cser", {"exchange": {"kind": "cser"}, "optimizer": PLAIN}),
    ],
)
def test_nodes_that_are_found_do_not_go_with_what_other_nodes_cannot_take_over(
    name: str, parts: dict[str, Any]
) -> None:
    found = JOB | parts | {"workers": {"count": 4, "per_node": "auto"}}

    [problem] = problems_in(found)

    assert (problem.pointer, problem.value) == ("/workers/per_node", "auto")
    assert f"under `{name}`" in problem.message and "as 1" in problem.message
    assert JobSpec.model_validate(found | {"workers": {"count": 4, "per_node": 2}}).workers.placed_together == 2
    assert JobSpec.stored(found).workers.per_node == "auto"  # accepted by an earlier release


@pytest.mark.parametrize(
    "weights", ["https://me:hush@host/w", "s3://me:hush@bucket/w", "simplecache::ftp://me:hush@h/w"]
)
def test_no_job_brings_a_password_for_its_weights_and_a_stored_one_is_read_as_it_is(weights: str) -> None:
    content = JOB | {"workload": {"kind": "digits-mlp", "weights": weights}}

    [problem] = problems_in(content)

    assert problem.pointer == "/workload/weights" and "hush" not in repr(problem)
    assert JobSpec.stored(content).workload.weights == weights


def test_a_job_starts_from_a_file_or_from_another_jobs_weights() -> None:
    workload = {"kind": "digits-mlp", "weights": "/data/w", "weights_of": {"job": "job-1"}}

    [problem] = problems_in(JOB | {"workload": workload})

    assert "`weights` and `weights_of` both say where to start from: give one of them" in problem.message
    for left in ("weights", "weights_of"):
        found = JobSpec.model_validate(JOB | {"workload": {"kind": "digits-mlp", left: workload[left]}})
        assert not found.workload.is_new


@pytest.mark.parametrize("weights", ["/data/me@home/w", "s3://bucket/me@home/w", "https://host/w"])
def test_weights_may_have_any_name(weights: str) -> None:
    assert JobSpec.model_validate(JOB | {"workload": {"kind": "digits-mlp", "weights": weights}})


def test_no_new_arm_is_called_as_the_best_trial_is_and_one_of_an_earlier_release_keeps_its_name() -> None:
    content = JOB | {"arms": [{"name": "a"}, {"name": "best"}]}

    with pytest.raises(ValidationError) as refusal:
        JobSpec.model_validate(content, context=GIVEN)

    [problem] = problems_of(refusal.value, content, JobSpec)
    assert (problem.pointer, problem.value) == ("/arms/1/name", "best") and "means the best trial" in problem.message
    assert JobSpec.model_validate(content).arms[1].name == "best"
