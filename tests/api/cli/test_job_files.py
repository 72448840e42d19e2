"""A job's file may name a schedule by its path; the submitted job contains the schedule itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from api.cli.job_file import read_job, with_schedules
from api.documents import checked
from service.errors import InvalidJob
from service.job.spec import JobSpec

JOB: dict[str, Any] = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 10}, "optimizer": {"kind": "sgd"}}
SCHEDULE = {
    "format": "wiretune.schedule/1",
    "trial_id": "an exported file says more than it must",
    "optimizer": "sgd",
    "num_steps": 10,
    "entries": [{"step": 0, "num_steps": 10, "learning_rate": 0.1}],
}


def test_a_named_schedule_becomes_part_of_the_job_wherever_it_stands(tmp_path: Path) -> None:
    (tmp_path / "schedule.json").write_text(json.dumps(SCHEDULE))
    named = {"kind": "schedule", "path": "schedule.json"}
    content = JOB | {"controller": dict(named), "arms": [{"name": "a"}, {"name": "b", "controller": dict(named)}]}

    spec = checked(JobSpec, with_schedules(content, str(tmp_path)))

    assert spec.controller.kind == "schedule" and spec.controller.schedule.num_steps == 10
    assert spec.arms[1].controller == spec.controller


@pytest.mark.parametrize(("text", "said"), [(None, "cannot read the schedule"), ("{", "holds no schedule")])
def test_a_schedule_that_cannot_be_read_is_refused_with_its_place(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "schedule.json").write_text(text)
    arm = {"name": "a", "controller": {"kind": "schedule", "path": str(tmp_path / "schedule.json")}}

    with pytest.raises(InvalidJob, match=said) as error:
        with_schedules(JOB | {"arms": [arm]}, "/")

    assert error.value.problems[0].pointer == "/arms/0/controller/path"


@pytest.mark.parametrize("content", [None, [], {"arms": 3}, {"arms": [1]}, {"controller": "bo"}, {"arms": [{"x": 1}]}])
def test_what_is_no_job_is_left_to_the_jobs_checks(content: Any) -> None:
    assert with_schedules(content, "/") == content


@pytest.mark.parametrize(
    "text",
    [json.dumps(JOB | {"name": "🚀"}), "\n {workload: {kind: digits-mlp}, budget: {steps: 10}, name: 🚀}"],
    ids=["JSON", "YAML in braces"],
)
def test_a_file_in_braces_is_json_or_yaml_with_any_character(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")

    assert read_job(path).name == "🚀"
