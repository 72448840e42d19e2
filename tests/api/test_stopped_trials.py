"""One trial of a job is stopped over REST, from Python and from the command line."""

import asyncio
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from api.async_client import AsyncClient
from api.cli.main import app
from api.client import Client
from api.failures import ApiError
from service.control.store import Store
from service.job.spec import JobSpec
from service.job.states import JobState
from tests.api.conftest import Reporting
from tests.support.reported import finished

run_cli = CliRunner()


@pytest.fixture(autouse=True)
def begun(reporting: Reporting) -> None:
    for arm in ("tuned", "dense"):
        reporting.start(arm)


def test_a_trial_is_stopped_once_and_only_on_the_job_that_was_seen(http: TestClient, reporting: Reporting) -> None:
    job, trial = f"/v1/jobs/{reporting.job_id}", reporting.trial("dense")
    version = http.get(job).json()["version"]

    stale = http.post(f"{job}/trials/{trial}:stop", headers={"If-Match": f'"{version - 1}"'})
    first = http.post(f"{job}/trials/{trial}:stop", headers={"If-Match": f'"{version}"'})
    second = http.post(f"{job}/trials/{trial}:stop")

    assert (stale.status_code, first.status_code, second.status_code) == (412, 202, 409)
    assert first.json()["state"] == "running" and first.json()["version"] == version + 1
    assert "was stopped already, by test" in second.json()["detail"]
    assert [each["stopped_by"] for each in http.get(f"{job}/trials").json()] == [None, "test"]


def test_a_trial_that_is_not_there_and_a_body_are_refused(http: TestClient, reporting: Reporting) -> None:
    trials = f"/v1/jobs/{reporting.job_id}/trials"

    unknown = http.post(f"{trials}/{reporting.job_id}.sparse.0:stop")
    with_body = http.post(f"{trials}/{reporting.trial('dense')}:stop", json={"now": True})

    assert (unknown.status_code, with_body.status_code) == (404, 422)
    assert f"has no trial `{reporting.job_id}.sparse.0`" in unknown.json()["detail"]


def test_a_job_of_either_client_stops_its_trial(client: Client, key: str, reporting: Reporting) -> None:
    job = client.job(reporting.job_id).stop_trial(reporting.trial("dense"))

    async def again() -> None:
        async with AsyncClient(client.url, key) as asked:
            await (await asked.job(reporting.job_id)).stop_trial(reporting.trial("dense"))

    assert job.state is JobState.RUNNING and job.trials()[1].stopped_by == "test"
    with pytest.raises(ApiError, match="was stopped already"):
        asyncio.run(again())


def test_the_command_line_stops_an_arm_and_leaves_the_others(at: str, client: Client, reporting: Reporting) -> None:
    stopped = run_cli.invoke(app, ["stop", reporting.job_id, "--arm", "dense"])
    again = run_cli.invoke(app, ["stop", reporting.job_id, "--arm", "dense"])
    other = run_cli.invoke(app, ["stop", reporting.job_id, "--arm", "tuned", "--seed", "0", "--json"])

    assert (stopped.exit_code, stopped.stdout) == (0, f"dense of {reporting.job_id} stops\n")
    assert again.exit_code == 2 and "was stopped already, by test" in again.stderr
    assert json.loads(other.stdout)["state"] == "running"
    assert [trial.stopped_by for trial in client.trials(reporting.job_id)] == ["test", "test"]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_seed_that_ends_meanwhile_keeps_no_other_from_being_stopped(
    at: str, client: Client, store: Store, job: JobSpec, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    seeds = Reporting(store, job.model_copy(update={"seeds": (0, 1)}))
    first, second = (f"{seeds.job_id}.dense.{seed}" for seed in (0, 1))
    stop = Client.stop_trial

    def stop_late(asked: Client, job_id: str, trial_id: str, **options: Any) -> Any:
        if trial_id == first:
            seeds.post(finished(first))
        return stop(asked, job_id, trial_id, **options)

    monkeypatch.setattr(Client, "stop_trial", stop_late)
    done = run_cli.invoke(app, ["stop", seeds.job_id, "--arm", "dense", *(["--json"] if as_json else [])])

    assert done.exit_code == 2 and f"trial `{first}` has ended, completed" in done.stderr
    assert {trial.trial_id for trial in client.trials(seeds.job_id) if trial.stopped_by} == {second}
    if as_json:
        assert json.loads(done.stdout)["id"] == json.loads(done.stderr)["job"] == seeds.job_id
    else:
        assert "stops" in done.stdout and "refused 1 of 2 trials" in done.stderr


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["JOB", "--arm", "sparse"], "has no trial of arm `sparse`; `wiretune show` lists"),
        (["JOB", "--arm", "dense", "--seed", "7"], "has no trial of arm `dense` and seed 7"),
        (["JOB", "--seed", "0"], "--seed is of an arm: add --arm"),
        (["--arm", "dense"], "--arm is of a job: name the job"),
    ],
)
def test_an_arm_that_is_not_there_is_named(at: str, reporting: Reporting, options: list[str], fault: str) -> None:
    done = run_cli.invoke(app, ["stop", *(reporting.job_id if each == "JOB" else each for each in options)])

    assert done.exit_code == 2 and fault in done.stderr


def test_a_driver_says_how_long_it_has_lived(http: TestClient, reporting: Reporting) -> None:
    job, token = reporting.job_id, reporting.store.attempts.token(reporting.job_id, 1)
    lease = f"/v1/attempts/{job}/1/lease"

    answers = [
        http.post(lease, json=body, headers={"Authorization": f"Bearer {token}"}).status_code
        for body in ({}, {"held_s": 65.0}, {"held_s": -1})
    ]

    assert answers == [200, 200, 422]
