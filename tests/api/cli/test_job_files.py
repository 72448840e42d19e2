"""A job's file may name a schedule by its path; the submitted job contains the schedule itself. Options change jobs."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from api.cli import main
from api.cli.job_file import read_job, with_schedules
from api.client import Client
from api.documents import checked, parse_json
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


def test_a_job_takes_the_values_of_a_schedule_and_not_what_was_measured(tmp_path: Path) -> None:
    values = {"num_steps": 10, "learning_rate": 0.1}
    measured = {"final_learning_rate": None, "density": 0.01, "threshold": 0.5, "reason": "probes", "steered_by": []}
    steps = range(0, 30_000, 10)
    long = SCHEDULE | {"num_steps": 30_000, "entries": [{"step": step} | values | measured for step in steps]}
    (tmp_path / "schedule.json").write_text(json.dumps(long))
    named = JOB | {"controller": {"kind": "schedule", "path": "schedule.json"}}

    content = with_schedules(named, str(tmp_path))

    assert content["controller"]["schedule"]["entries"] == [{"step": step} | values for step in steps]
    parse_json(json.dumps(content).encode())  # as many values as a service takes


@pytest.mark.parametrize("form", ["option", "file"])
def test_a_clone_follows_the_schedule_that_its_changes_name(
    at: str, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    controller = {"kind": "fixed"} if form == "option" else {"kind": "schedule", "schedule": SCHEDULE}
    made = client.submit(JOB | {"controller": controller})
    entries = [{"step": 0, "num_steps": 10, "learning_rate": 0.2}]
    (tmp_path / "schedule.json").write_text(json.dumps(SCHEDULE | {"entries": entries}))
    (tmp_path / "changes.yaml").write_text("controller: {path: schedule.json}")  # the kind stays
    monkeypatch.chdir(tmp_path)
    named = {"option": ["--set", "controller={kind: schedule, path: schedule.json}"]}
    changes = named.get(form, ["--changes", "changes.yaml"])

    done = CliRunner().invoke(main.app, ["clone", made.id, *changes, "--dry-run", "--json"])

    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["spec"]["controller"]["schedule"]["entries"][0]["learning_rate"] == 0.2


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


CHANGES = ["--set", "budget.steps=20", "--set", "exchange={kind: none}", "--name", "2024", "--label", "v1.2=yes"]


@pytest.mark.parametrize("command", [["validate"], ["submit", "--dry-run"]], ids=" ".join)
def test_options_change_a_job_as_its_file_would(at: str, tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / "job.yaml"
    # Neither kind nor budget is allowed, so the changes come before the checks.
    path.write_text(json.dumps(JOB | {"exchange": {"kind": "topk", "width": 3}, "budget": {"steps": 0}}))

    found = CliRunner().invoke(main.app, [*command, str(path), *CHANGES])

    changed = {"budget": {"steps": 20}, "exchange": {"kind": "none"}, "name": "2024", "labels": {"v1.2": "yes"}}
    assert JobSpec.model_validate_json(found.stdout) == JobSpec.model_validate(JOB | changed)


def test_a_schedule_that_an_option_names_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "schedule.json").write_text(json.dumps(SCHEDULE))
    (tmp_path / "job.yaml").write_text(json.dumps(JOB))
    monkeypatch.chdir(tmp_path)
    options = ["--set", "controller.kind=schedule", "--set", "controller.path=schedule.json", "--json"]

    found = json.loads(CliRunner().invoke(main.app, ["validate", "job.yaml", *options]).stdout)

    assert found["spec"]["controller"]["schedule"]["num_steps"] == 10


def test_changes_to_what_is_no_job_are_refused_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("[1, 2]")

    found = CliRunner().invoke(main.app, ["validate", str(tmp_path / "job.yaml"), "--set", "budget.steps=1"])

    assert found.exit_code == 2 and "got a list" in found.stderr


@pytest.mark.parametrize("command", ["run", "check"])
def test_commands_of_this_machine_take_the_same_options(tmp_path: Path, command: str) -> None:
    (tmp_path / "job.yaml").write_text(json.dumps(JOB))

    found = CliRunner().invoke(main.app, [command, str(tmp_path / "job.yaml"), "--set", "budget.steps=0"])

    assert found.exit_code == 2 and "/budget/steps" in found.stderr
