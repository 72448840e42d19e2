"""`If-Match` on verbs, by HTTP, by the client and from a terminal; and requests from other sites' pages."""

import re

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from api.cli import main
from api.client import Client
from api.failures import ApiError
from api.http.examples import EXAMPLE_JOB
from service.job.spec import JobSpec
from service.job.states import JobState, Verb, verbs_in


@pytest.fixture
def job_id(http: TestClient) -> str:
    created: str = http.post("/v1/jobs", json=EXAMPLE_JOB).json()["id"]
    return created


def test_a_verb_with_the_etag_of_what_was_read_passes_once(http: TestClient, job_id: str) -> None:
    seen = {"If-Match": http.get(f"/v1/jobs/{job_id}").headers["etag"]}

    first = http.post(f"/v1/jobs/{job_id}:pause", headers=seen)
    second = http.post(f"/v1/jobs/{job_id}:cancel", headers=seen)

    assert (first.status_code, second.status_code) == (202, 412)
    document, version = second.json(), first.json()["version"]
    assert second.headers["content-type"] == "application/problem+json"
    assert document["type"] == "/problems/precondition-failed"
    assert f"is paused now (paused by test), at version {version}, not 1" in document["detail"]
    assert "what it allows now: `resume`, `cancel` or `steer`" in document["detail"]
    assert http.get(f"/v1/jobs/{job_id}").json() == first.json()


def test_every_verb_takes_it(http: TestClient, job_id: str) -> None:
    answers = {
        verb: http.post(f"/v1/jobs/{job_id}:{verb}", json=given, headers={"If-Match": '"0"'}).status_code
        for verb in Verb
        for given in [{Verb.STEER: {"search_now": True}, Verb.EXTEND: {"seconds": 80}}.get(verb, {})]
    }

    assert answers == dict.fromkeys(Verb, 412)


@pytest.mark.parametrize(
    ("tags", "status"),
    [
        ("*", 202),
        ('"1"', 202),
        ('"0" , W/"1","1"', 202),
        ('W/"1"', 412),  # weak tags never match, RFC 9110
        ('"1a"', 412),
        ('""', 412),
        (f'"{"1" * 5000}"', 412),
        ("1", 422),
        ('"1', 422),
        ('"0" "1"', 422),
    ],
)
def test_what_names_the_job_as_it_is_passes_and_what_is_no_tag_is_said_to_be(
    http: TestClient, job_id: str, tags: str, status: int
) -> None:
    answer = http.post(f"/v1/jobs/{job_id}:pause", headers={"If-Match": tags})

    assert answer.status_code == status
    if status == 422:
        [error] = answer.json()["errors"]
        assert (error["pointer"], error["value"]) == ("/If-Match", tags) and "in quotes" in error["message"]


def test_a_job_says_what_may_be_asked_of_it(http: TestClient, job_id: str) -> None:
    shown = {"queued": http.get(f"/v1/jobs/{job_id}").json()["verbs"]}
    for verb in ("pause", "cancel"):
        job = http.post(f"/v1/jobs/{job_id}:{verb}").json()
        shown[job["state"]] = job["verbs"]

    assert shown == {state: [*verbs_in(JobState(state))] for state in ("queued", "paused", "cancelled")}


def test_client_and_terminal_act_on_a_version(
    client: Client, key: str, job: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WIRETUNE_URL", client.url)
    monkeypatch.setenv("WIRETUNE_API_KEY", key)
    first = client.submit(job).view
    paused = client.pause(first.id, version=first.version)

    with pytest.raises(ApiError, match="is paused now") as refusal:
        client.cancel(first.id, version=first.version)
    stale = CliRunner().invoke(main.app, ["cancel", first.id, "--if-version", str(first.version)])
    passed = CliRunner().invoke(main.app, ["cancel", first.id, "--if-version", str(paused.version)])
    of_nothing = CliRunner().invoke(main.app, ["stop", "--if-version", "1"])

    assert refusal.value.status == 412
    assert stale.exit_code == 2 and "is paused now" in stale.stderr
    assert (passed.exit_code, client.job(first.id).state) == (0, JobState.CANCELLED)
    assert of_nothing.exit_code == 2 and "name the job" in of_nothing.stderr


def test_a_page_of_another_site_can_have_nothing_done(http: TestClient, job_id: str) -> None:
    """The key is no cookie, so a browser sends it for nobody; and none may send it along from elsewhere."""
    asked = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "POST"}
    asked |= {"Access-Control-Request-Headers": "authorization,if-match"}
    before, key = http.get(f"/v1/jobs/{job_id}").json(), http.headers.pop("Authorization")

    preflight = http.options(f"/v1/jobs/{job_id}:cancel", headers=asked)
    without_key = http.post(f"/v1/jobs/{job_id}:cancel", headers={"Origin": asked["Origin"]})
    answers = [preflight, without_key, http.get("/")]

    assert preflight.is_error and without_key.status_code == 401
    named = {name for answer in answers for name in answer.headers}
    assert not any(re.match("set-cookie|access-control-allow", name) for name in named)
    assert http.get(f"/v1/jobs/{job_id}", headers={"Authorization": key}).json() == before
