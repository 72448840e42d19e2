"""A conflict is told at the part that an arm sets, or else at the job's, once, with the arms that have it."""

from typing import Any

import pytest

from tests.service.refusals import problems_in

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
    ({"exchange": {"kind": "auto"}, "optimizer": {"kind": "auto"}}, "optimizer"),
    ({"exchange": {"kind": "topk", "density": [0.01, 0.1]}, "controller": {"kind": "fixed"}}, "exchange/density"),
    ({"optimizer": {"kind": "auto"}, "controller": {"kind": "fixed"}}, "optimizer"),
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
