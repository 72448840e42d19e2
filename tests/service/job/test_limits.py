"""The limits of a job: their range, and what a job without any is."""

import pytest

from service.job.spec import JobSpec
from tests.support.refusals import problems_in

JOB = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 100}}


@pytest.mark.parametrize("seconds", [1, 600.5, 31_536_000])
def test_a_limit_is_from_a_second_to_a_year(seconds: float) -> None:
    assert JobSpec.model_validate(JOB | {"limits": {"wall_seconds": seconds}}).limits.wall_seconds == seconds


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        (0.5, "`wall_seconds` should be greater than or equal to 1, got 0.5"),
        (31_536_001, "`wall_seconds` should be less than or equal to 31536000, got 31536001"),
    ],
)
def test_a_limit_out_of_its_range_is_refused_with_it(seconds: float, message: str) -> None:
    [problem] = problems_in(JOB | {"limits": {"wall_seconds": seconds}})

    assert (problem.pointer, problem.message) == ("/limits/wall_seconds", message)


def test_a_job_that_an_earlier_release_stored_has_no_limit() -> None:
    stored = JobSpec.model_validate(JOB).model_dump(mode="json")
    del stored["limits"]

    assert JobSpec.stored(stored).limits.wall_seconds is None
