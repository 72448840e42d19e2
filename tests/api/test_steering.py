"""Users steer a job over REST, from Python and from the command line, and its results record it."""

import json

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from api.cli.main import app
from api.client import Client
from api.failures import ApiError
from search.types import Band, Steer
from service.job.spec import JobSpec
from service.wire.records import StageDecided
from tests.api.conftest import Reporting
from tests.support.decisions import decision

run_cli = CliRunner()


def _heeding(reporting: Reporting, stage: int, *steers: Steer) -> StageDecided:
    return StageDecided(
        trial_id=reporting.trial("tuned"), stage=stage, first_step=100 * stage, learning_rate=0.05, level=0.01,
        reason="as pinned", switched=False, probability=None, forecast=None, forecast_std=None, search_seconds=0.0,
        search_steps=0, search_bytes=0, decision=decision(stage).model_copy(update={"steers": steers}),
    )  # fmt: skip


def test_a_steer_is_refused_by_pointer_and_answers_the_job_where_it_is_heeded(
    http: TestClient, reporting: Reporting
) -> None:
    url = f"/v1/jobs/{reporting.job_id}"
    refused = http.post(f"{url}:steer", json={"pin": {"density": 5}, "veto": {"rank": {"above": 1}}})
    [first, second] = refused.json()["errors"]
    assert refused.status_code == 422
    assert (first["pointer"], second["pointer"]) == ("/veto/rank", "/pin/density")
    assert (second["value"], second["arms"]) == (5, ["tuned"])
    assert "in [0.003, 0.1], got 5" in second["message"]

    answer = http.post(f"{url}:steer", json={"pin": {"density": 0.02}}, headers={"If-Match": '"2"'})
    assert (answer.status_code, answer.json()["version"]) == (202, 3)
    assert http.get(f"{url}/steering").json()["steers"][0]["pin"] == {"density": 0.02}


@pytest.mark.parametrize(
    "nonsense",
    [
        {},
        {"pin": {}},
        {"veto": {"learning_rate": {}}},
        {"veto": {"learning_rate": {"above": 1, "below": 2}}},
        {"veto": {"learning_rate": []}},
        {"pin": {"learning_rate": None}},
        {"trials": []},
        {"else": 1},
    ],
)
def test_what_says_nothing_is_refused(http: TestClient, reporting: Reporting, nonsense: dict[str, object]) -> None:
    assert http.post(f"/v1/jobs/{reporting.job_id}:steer", json=nonsense).status_code == 422


def test_a_viewer_looks_and_a_submitter_steers_his_own_jobs_alone(http: TestClient, reporting: Reporting) -> None:
    url = f"/v1/jobs/{reporting.job_id}"
    for role, status in (("viewer", 403), ("submitter", 403), ("operator", 202)):
        made = http.post("/v1/keys", json={"name": role, "role": role}).json()["secret"]
        key = {"Authorization": f"Bearer {made}"}
        assert http.post(f"{url}:steer", json={"search_now": True}, headers=key).status_code == status
        assert http.get(f"{url}/steering", headers=key).status_code == 200
    assert [each["by"] for each in http.get(f"{url}/steering").json()["steers"]] == ["operator"]


def test_a_job_of_the_client_is_steered_and_its_results_name_who_did(
    client: Client, reporting: Reporting, job: JobSpec
) -> None:
    handle = client.job(reporting.job_id).steer(pin={"density": 0.02}, veto={"learning_rate": {"above": 0.5}})
    [said] = handle.steering().steers
    steer = Steer(id=said.id, by="ada", pin=said.pin, veto=said.veto)
    reporting.start("tuned")
    reporting.post(_heeding(reporting, 0), _heeding(reporting, 1, steer), _heeding(reporting, 2, steer))

    trial = reporting.trial("tuned")
    assert handle.steering().steers[0].first_stages == {trial: 1}
    assert [len(stage.steers) for stage in handle.stages(trial=trial)] == [0, 1, 1]
    assert handle.stages(trial=trial)[1].steers[0].veto == {"learning_rate": Band(above=0.5)}
    [view, *_] = client.snapshot(reporting.job_id).schedules
    assert [entry.steered_by for entry in view.entries] == [(), ("ada",), ("ada",)]
    assert "ada steered stages 1, 2" in handle.report().trials[0].notes
    with pytest.raises(ApiError, match="no steer 9 holds"):
        handle.steer(clear=[9])


def test_the_command_line_pins_vetoes_shows_and_withdraws(at: str, reporting: Reporting) -> None:
    def steer(*options: str) -> str:
        done = run_cli.invoke(app, ["steer", reporting.job_id, *options])
        assert done.exit_code == 0, done.output
        return done.output

    may = "what may be steered:\n    learning_rate: 1e-08 to 1000, in 1 trial\n    density: "
    assert f"nobody steers this job\n{may}" in steer()
    shown = steer("--pin", "density=0.02", "--veto", "learning_rate>0.5", "--veto", "learning_rate<1e-4")
    assert "1: density = 0.02, not learning_rate > 0.5, not learning_rate < 0.0001, by test" in shown
    assert may in shown and "nobody" not in shown
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=0.2, density=0.02)
    assert "learning_rate: 1e-08 to 1000, now 0.2, in 1 trial" in steer()
    assert json.loads(steer("--json"))["steers"][0]["veto"] == {"learning_rate": {"above": 0.5, "below": 1e-4}}
    assert "2: a search now" in steer("--search-now", "--trial", reporting.trial("tuned"))
    assert "1: " not in steer("--withdraw", "1")
    assert "nobody steers this job" in steer("--clear")


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--pin", "density"], "--pin takes NAME=VALUE"),
        (["--pin", "learning_rate=[0.1"], "--pin learning_rate=[0.1: /: this is not YAML"),
        (["--pin", "learning_rate=.nan"], "/pin/learning_rate: must be a finite number, got nan"),
        (["--veto", "x>{"], "--veto x>{: /: this is not YAML"),
        (["--veto", "density"], "--veto takes NAME>NUMBER"),
        (["--veto", "density>much"], "--veto takes NAME>NUMBER"),
        (["--veto", "a>1", "--veto", "a=1"], "not both"),
        (["--clear", "--withdraw", "1"], "leave --withdraw out"),
        (["--trial", "x"], "change nothing alone"),
        (["--if-version", "0"], "change nothing alone"),
    ],
)
def test_an_option_that_cannot_be_read_is_named(at: str, reporting: Reporting, options: list[str], fault: str) -> None:
    done = run_cli.invoke(app, ["steer", reporting.job_id, *options])

    assert done.exit_code == 2 and fault in done.output
