"""The job of one trial trains what that trial trains."""

from typing import Any

import pytest

from service.job.changes import of_trial
from service.job.spec import JobSpec

PARTS: list[dict[str, Any]] = [
    {"exchange": {"kind": "none"}, "controller": {"kind": "cosine"}},
    {"exchange": {"kind": "dgc", "momentum_correction": None}, "optimizer": {"kind": "sgd", "momentum": 0.9}},
]


@pytest.mark.parametrize("parts", PARTS, ids=["others", "null inside a part"])
def test_the_job_of_an_arm_has_what_the_arm_sets(parts: dict[str, Any]) -> None:
    arms = [{"name": "tuned"}, {"name": "own", **parts}]
    job = JobSpec.model_validate({"workload": {"kind": "digits-mlp"}, "budget": {"steps": 100}, "arms": arms})

    made = JobSpec.model_validate(of_trial(job, "own", None))

    assert list(made.trials()) == [trial for trial in job.trials() if trial.arm == "own"]
