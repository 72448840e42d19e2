"""A job with a field unknown to this release is shown and can be ended; operations that need its parts refuse."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from api.cli import main
from api.client import Client
from service.control import jobs
from service.control.store import Store
from service.errors import UnreadableJob
from service.job.states import TERMINAL, JobState, Verb
from service.wire.records import AttemptFinished, Batch, Control
from service.wire.stored import UnreadJob
from tests.api.conftest import Reporting
from tests.api.test_routes import refused
from tests.support.unreadable import JOB, PARTS, make_unreadable

#: What a page, or a script, reads of a job.
READS = (
    "report", "comparison", "snapshot", "schedule", "steering", "artifacts", "weights", "weights?which=best",
    "trials", "stages", "metrics/loss", "metrics.csv", "attempts", "logs", "events", "files/x",
)  # fmt: skip
OF_ITS_PARTS = ("report", "comparison", "snapshot", "schedule", "steering", "artifacts")
ASKS: dict[str, Any] = {
    "resume": None, "retry": None, "resume?workers=2": None, "extend": {"steps": 2000}, "steer": {"search_now": True},
    "clone": {"name": "another"},
}  # fmt: skip
_ASKED = {JobState.PAUSING: Store.pause, JobState.STOPPING: Store.stop, JobState.CANCELLING: Store.cancel}


def stored(store: Store, job_id: str) -> dict[str, Any]:
    with store._db.reading() as session:
        found: dict[str, Any] = jobs.locked(session, job_id).spec
        return found


def job_in(store: Store, state: JobState) -> str:
    """A job in that state."""
    if state in (JobState.QUEUED, JobState.PAUSED, JobState.CANCELLED):
        job_id = store.add_job(JOB)[0].id
        {JobState.PAUSED: store.pause, JobState.CANCELLED: store.cancel}.get(state, store.job)(job_id)
        return job_id
    reporting = Reporting(store, JOB)
    if state is JobState.STARTING:
        return reporting.job_id
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=0.1, density=0.01)
    if state in _ASKED:
        _ASKED[state](store, reporting.job_id)
    elif state is JobState.SUCCEEDED:
        reporting.finish()
    elif state is JobState.FAILED:
        reporting.post(AttemptFinished(outcome="failed", reason="no such file", retry=False))
    return reporting.job_id


@pytest.mark.parametrize("part", PARTS)
def test_a_job_is_shown_with_the_field_that_cannot_be_read(http: TestClient, store: Store, part: str) -> None:
    job_id = job_in(store, JobState.RUNNING)
    make_unreadable(store, job_id, part)

    shown = http.get(f"/v1/jobs/{job_id}")
    listed = http.get("/v1/jobs", params={"progress": True})

    assert (shown.status_code, listed.status_code) == (200, 200)
    assert shown.json()["unreadable"] == f"{part}.colour".lstrip(".")
    assert shown.json()["spec"] == stored(store, job_id)
    assert shown.json()["labels"] == {} and shown.json()["advice"] == []
    assert [job["id"] for job in listed.json()["jobs"]] == [job_id]


@pytest.mark.parametrize("state", JobState)
def test_a_job_that_cannot_be_read_is_ended_and_deleted_and_all_else_is_refused(
    http: TestClient, store: Store, state: JobState
) -> None:
    job_id = job_in(store, state)
    make_unreadable(store, job_id, "workers")

    shown = http.get(f"/v1/jobs/{job_id}").json()
    reads = {path: http.get(f"/v1/jobs/{job_id}/{path}") for path in READS}
    edited = http.patch(f"/v1/jobs/{job_id}", json={"labels": {"team": "red"}, "notes": "of another release"})
    asked = {
        verb: http.post(f"/v1/jobs/{job_id}:{verb.partition('?')[0]}?{verb.partition('?')[2]}", json=body)
        for verb, body in ASKS.items()
    }

    assert (shown["state"], shown["unreadable"]) == (state, "workers.colour")
    assert not {Verb.RESUME, Verb.RETRY, Verb.EXTEND, Verb.STEER} & set(shown["verbs"])
    assert {path: answer.status_code for path, answer in reads.items() if answer.status_code == 500} == {}
    for path in OF_ITS_PARTS:
        assert "workers.colour" in refused(reads[path], 409, "unreadable-job")["detail"]
    assert edited.status_code == 200 and edited.json()["labels"] == {"team": "red"}
    assert {verb: answer.status_code for verb, answer in asked.items()} == dict.fromkeys(ASKS, 409)
    end(store, http, job_id)
    assert http.delete(f"/v1/jobs/{job_id}").status_code == 204


def end(store: Store, http: TestClient, job_id: str) -> None:
    """Cancel the job, unless it is over or about to be."""
    if "cancel" in http.get(f"/v1/jobs/{job_id}").json()["verbs"]:
        assert http.post(f"/v1/jobs/{job_id}:cancel").status_code == 202
    if store.job(job_id).state not in TERMINAL:
        assert store.attempts.lose(job_id, 1, reason="its driver ended").state is JobState.CANCELLED


def test_a_live_job_that_cannot_be_read_is_paused_and_stopped(http: TestClient, store: Store) -> None:
    first, second = (job_in(store, JobState.RUNNING) for _ in range(2))
    for job_id in (first, second):
        make_unreadable(store, job_id, "")

    asked = http.post(f"/v1/jobs/{first}:pause"), http.post(f"/v1/jobs/{second}:stop")

    assert [(answer.status_code, answer.json()["state"]) for answer in asked] == [(202, "pausing"), (202, "stopping")]


def test_the_driver_of_a_sweep_that_cannot_be_read_goes_on(store: Store) -> None:
    job_id = job_in(store, JobState.RUNNING)
    make_unreadable(store, job_id, "sweep")
    sample = next(trial.trial_id for trial in store.trials(job_id) if trial.sample is not None)

    answer = store.attempts.ingest(job_id, 1, Batch(stream=sample, sequence=1, records=()))

    assert answer.control is Control.RUN
    with pytest.raises(UnreadableJob, match=r"sweep\.colour"):
        store.attempts.brief(job_id, 1)


def test_a_repeat_of_a_job_that_cannot_be_read_is_refused(http: TestClient, store: Store) -> None:
    body, headers = JOB.model_dump(mode="json", exclude={"webhook"}), {"Idempotency-Key": "once"}
    first = http.post("/v1/jobs", json=body, headers=headers)
    make_unreadable(store, first.json()["id"], "budget")

    again = http.post("/v1/jobs", json=body, headers=headers)

    assert first.status_code == 202
    assert "budget.colour" in refused(again, 409, "unreadable-job")["detail"]


def test_clients_have_the_job_as_it_is_stored(client: Client, store: Store) -> None:
    job_id = job_in(store, JobState.QUEUED)
    make_unreadable(store, job_id, "workers")

    job = client.job(job_id)

    assert job.view.spec == UnreadJob(stored(store, job_id)) and job.view.unread == "workers.colour"
    assert repr(job) and job.refresh()._repr_html_()
    with pytest.raises(UnreadableJob, match=r"workers\.colour"):
        _ = job.spec


def test_a_client_of_an_earlier_release_than_the_service_names_the_field_itself(store: Store) -> None:
    view = store.job(job_in(store, JobState.QUEUED)).model_dump(mode="json")
    view["spec"]["workers"]["colour"] = "red"

    read = type(store.job(view["id"])).model_validate_json(json.dumps(view))

    assert (read.unreadable, read.unread) == (None, "workers.colour")


def test_show_prints_where_the_job_is_and_what_is_stored(
    live_url: str, key: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = job_in(store, JobState.RUNNING)
    make_unreadable(store, job_id, "workers")
    monkeypatch.setenv("WIRETUNE_URL", live_url)
    monkeypatch.setenv("WIRETUNE_API_KEY", key)

    shown, as_json = (CliRunner().invoke(main.app, ["show", job_id, *options]) for options in ([], ["--json"]))

    assert shown.exit_code == 0, shown.output
    for text in ("running", "workers.colour", '"colour": "red"'):
        assert text in shown.output
    assert json.loads(as_json.output)["job"]["spec"] == stored(store, job_id)


def test_a_prediction_for_a_job_that_cannot_be_read_ends_with_the_reason(store: Store, live_url: str, key: str) -> None:
    job_id = job_in(store, JobState.QUEUED)
    make_unreadable(store, job_id, "workers")

    done = CliRunner().invoke(
        main.app, ["predict", job_id, "--compute-ms", "10", "--mbps", "50", "--url", live_url, "--key", key]
    )

    assert (done.exit_code, type(done.exception)) == (1, SystemExit)
    assert "cannot read it: workers.colour" in done.stderr
