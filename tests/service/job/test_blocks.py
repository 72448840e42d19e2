"""The settings of a job for the blocks that a step trains."""

from typing import Any

import pytest
from pydantic import ValidationError

from service.job.spec import JobSpec

JOB: dict[str, Any] = {
    "workload": {"kind": "digits-mlp"},
    "budget": {"seconds": 30},
    "optimizer": {"kind": "sgd"},
    "blocks": {"kind": "jointspar"},
}


def test_an_arm_may_draw_other_shares_than_the_job():
    arms = [{"name": "half"}, {"name": "few", "blocks": {"kind": "jointspar", "share": 0.2}}]

    job = JobSpec.model_validate(JOB | {"arms": arms})

    assert [trial.replica.blocks.share for trial in job.trials()] == [0.5, 0.2]  # type: ignore[union-attr]


def test_a_range_of_shares_is_searched_by_what_searches_and_refused_by_what_does_not():
    searched = JOB | {"blocks": {"kind": "jointspar", "share": [0.3, 1.0]}}

    [trial] = JobSpec.model_validate(searched).trials()
    assert [each.name for each in trial.replica.ranges()] == ["share"]

    with pytest.raises(ValidationError, match="a range needs a controller that searches it"):
        JobSpec.model_validate(searched | {"controller": {"kind": "fixed"}})


@pytest.mark.parametrize(
    ("change", "instead"),
    [
        ({"exchange": {"kind": "topk", "density": 0.1}}, "exchange: {kind: none}"),
        ({"exchange": {"kind": "fp16"}}, "exchange: {kind: none}"),
        ({"sync": {"kind": "local_sgd"}}, "sync: {kind: every_step}"),
        ({"optimizer": {"kind": "adamw"}}, "optimizer: {kind: sgd}"),
        ({"optimizer": {"kind": "schedulefree_sgd"}}, "optimizer: {kind: sgd}"),
    ],
)
def test_what_does_not_go_with_drawn_blocks_is_refused_with_what_does(change: dict[str, Any], instead: str):
    with pytest.raises(ValidationError, match=instead) as refused:
        JobSpec.model_validate(JOB | change)

    assert refused.value.errors()[0]["ctx"]["conflicts"][0].pointer == "/blocks"


@pytest.mark.parametrize(
    "knobs", [{"share": 0}, {"share": 1.1}, {"share": [0.5, 0.2]}, {"share": 0.1, "min_chance": 0.2}]
)
def test_knobs_outside_their_range_are_refused(knobs: dict[str, Any]):
    with pytest.raises(ValidationError, match="share"):
        JobSpec.model_validate(JOB | {"blocks": {"kind": "jointspar"} | knobs})
