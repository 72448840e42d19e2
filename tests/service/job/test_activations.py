"""The activation settings of a job: shares per arm, ranges to search, and refusals."""

import pytest
from pydantic import ValidationError

from service.job.spec import JobSpec

JOB = {"workload": {"kind": "digits-mlp"}, "budget": {"seconds": 30}}
DROPPING = {"kind": "dropit", "gamma": 0.5}


def test_an_arm_may_drop_other_shares_than_the_job():
    arms = [{"name": "half"}, {"name": "most", "activations": {"kind": "dropit", "gamma": 0.9}}]

    job = JobSpec.model_validate(JOB | {"activations": DROPPING, "arms": arms})

    assert [trial.replica.activations.gamma for trial in job.trials()] == [0.5, 0.9]  # type: ignore[union-attr]


def test_a_range_of_shares_is_searched_by_what_searches_and_refused_by_what_does_not():
    searched = {"activations": {"kind": "dropit", "gamma": [0.5, 0.9]}}

    [trial] = JobSpec.model_validate(JOB | searched).trials()
    assert [each.name for each in trial.replica.ranges()] == ["gamma"]

    with pytest.raises(ValidationError, match="a range needs a controller that searches it"):
        JobSpec.model_validate(JOB | searched | {"controller": {"kind": "fixed"}})


@pytest.mark.parametrize("gamma", [1, -0.1, [0.9, 0.5], [0, 0.5]])
def test_a_share_outside_its_range_is_refused(gamma: object):
    with pytest.raises(ValidationError, match="gamma"):
        JobSpec.model_validate(JOB | {"activations": DROPPING | {"gamma": gamma}})
