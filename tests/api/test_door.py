"""The routes for the cluster: what a running attempt, and nobody else, may do over HTTP."""

import math
import secrets
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.control.store import Store
from service.wire.records import MAX_REASON_CHARS, Batch, MetricPoints
from tests.api.conftest import Reporting


@pytest.fixture
def door(anonymous: TestClient, store: Store, reporting: Reporting) -> TestClient:
    token = store.attempts.token(reporting.job_id, reporting.number)
    anonymous.headers["Authorization"] = f"Bearer {token}"
    anonymous.base_url = anonymous.base_url.join(f"/v1/attempts/{reporting.job_id}/{reporting.number}/")
    return anonymous


def points(trial_id: str, step: int, value: float) -> dict[str, Any]:
    point = MetricPoints(trial_id=trial_id, name="loss", steps=(step,), seconds=(0.1,), values=(value,))
    return point.model_dump(mode="json")


def batch(trial_id: str, sequence: int, value: float = 1.0) -> dict[str, Any]:
    return {"stream": trial_id, "sequence": sequence, "records": [points(trial_id, sequence, value)]}


@pytest.mark.parametrize("path", ["", "/"])
def test_an_attempt_learns_what_to_do(door: TestClient, reporting: Reporting, path: str) -> None:
    brief = door.get(f"http://testserver/v1/attempts/{reporting.job_id}/1{path}").json()

    assert brief["job_id"] == reporting.job_id
    assert [trial["trial_id"] for trial in brief["trials"]] == [reporting.trial("tuned"), reporting.trial("dense")]


def test_a_batch_that_comes_twice_counts_once(door: TestClient, reporting: Reporting, store: Store) -> None:
    trial_id = reporting.trial("tuned")

    first = door.post("records", json=batch(trial_id, 1, value=1.0)).json()
    again = door.post("records", json=batch(trial_id, 1, value=9.0)).json()

    assert first == again == {"sequence": 1, "control": "run", "steers": []}
    assert store.series(reporting.job_id, "loss", trial_id=trial_id)[0].values == (1.0,)


def test_a_gap_between_batches_is_refused(door: TestClient, reporting: Reporting) -> None:
    response = door.post("records", json=batch(reporting.trial("tuned"), 2))

    assert response.status_code == 409
    assert response.json()["type"] == "/problems/out-of-sequence"


def test_a_heartbeat_brings_the_order_to_stop(door: TestClient, reporting: Reporting, store: Store) -> None:
    before = door.post("lease", json={"schema_version": 1}).json()
    store.cancel(reporting.job_id)
    after = door.post("lease", json={"schema_version": 1}).json()

    assert (before["control"], after["control"]) == ("run", "cancel")


def test_an_attempt_that_the_database_fails_is_told_why_and_the_log_is_not(
    door: TestClient, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with store._db.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE attempts RENAME TO other_attempts")

    refusals = [door.get(""), door.post("lease", json={"schema_version": 1})]

    assert [answer.status_code for answer in refusals] == [503, 503]
    assert all("no such table: attempts" in answer.json()["detail"] for answer in refusals)
    assert "api.http.problems" not in [record.name for record in caplog.records]


def test_an_attempt_that_lost_its_job_is_turned_away(door: TestClient, reporting: Reporting, store: Store) -> None:
    store.attempts.lose(reporting.job_id, reporting.number, reason="lost")

    answers = [door.post("records", json=batch(reporting.trial("tuned"), 1)), door.post("lease", json={})]

    assert [answer.json()["type"] for answer in answers] == ["/problems/fenced"] * 2


def test_a_record_of_the_wrong_shape_is_named(door: TestClient, reporting: Reporting) -> None:
    sent = batch(reporting.trial("tuned"), 1)
    del sent["records"][0]["values"]

    response = door.post("records", json=sent)

    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == ["/records/0/values"]


@pytest.mark.parametrize("field", ["name", "trial_id"])
def test_a_name_that_no_index_takes_is_refused_and_no_outage(
    door: TestClient, reporting: Reporting, store: Store, field: str
) -> None:
    sent = batch(reporting.trial("tuned"), 1)
    sent["records"][0][field] = secrets.token_urlsafe(4096)  # which no database makes smaller

    response = door.post("records", json=sent)

    assert response.status_code == 422
    assert [error["pointer"] for error in response.json()["errors"]] == [f"/records/0/{field}"]
    assert store.failed_at == -math.inf


def test_a_drivers_last_words_may_hold_a_nul(door: TestClient, reporting: Reporting, store: Store) -> None:
    ended = {"kind": "attempt_finished", "outcome": "failed", "reason": "a\0b", "retry": False}

    response = door.post("records", json={"stream": "driver", "sequence": 1, "records": [ended]})

    assert response.status_code == 200
    assert store.attempts.of_job(reporting.job_id)[0].reason.startswith("a")


def test_a_reason_that_is_too_long_is_cut(door: TestClient, reporting: Reporting, store: Store) -> None:
    ended = {"kind": "attempt_finished", "outcome": "failed", "reason": "x" * 2**20, "retry": False}

    response = door.post("records", json={"stream": "driver", "sequence": 1, "records": [ended]})

    assert response.status_code == 200
    assert len(store.attempts.of_job(reporting.job_id)[0].reason) == MAX_REASON_CHARS


def test_a_large_batch_gets_through(door: TestClient, reporting: Reporting) -> None:
    trial_id, count = reporting.trial("tuned"), 60_000
    record = MetricPoints(
        trial_id=trial_id, name="loss", steps=tuple(range(count)), seconds=(0.1,) * count, values=(0.123456789,) * count
    )  # fmt: skip
    sent = Batch(stream=trial_id, sequence=1, records=(record,)).model_dump_json()
    assert len(sent) > 2**20

    response = door.post("records", content=sent)

    assert response.status_code == 200


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/attempts/{job}/2", "/v1/attempts/job-1/1"])
def test_an_attempts_token_opens_nothing_else(door: TestClient, reporting: Reporting, path: str) -> None:
    response = door.get(f"http://testserver{path.format(job=reporting.job_id)}")

    assert response.status_code == 401


def test_a_users_key_does_not_open_the_door(http: TestClient, reporting: Reporting) -> None:
    response = http.get(f"/v1/attempts/{reporting.job_id}/{reporting.number}")

    assert response.status_code == 401
