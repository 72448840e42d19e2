"""The problems of a job, for the tests of its parts."""

from typing import Any

import pytest
from pydantic import ValidationError

from service.job.problems import Problem, problems_of
from service.job.spec import JobSpec


def problems_in(body: dict[str, Any]) -> list[Problem]:
    """Return every reason why the job is refused; fails if it is not."""
    with pytest.raises(ValidationError) as error:
        JobSpec.model_validate(body)
    return problems_of(error.value, body, JobSpec)
