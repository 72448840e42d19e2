"""Users edit their jobs' labels, notes and archiving, and delete their jobs."""

import base64
import hashlib
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.http.examples import EXAMPLE_JOB
from service.control import queries
from service.control.store import Store
from service.wire.records import Bill
from tests.api.conftest import Reporting

MERGE_PATCH = {"Content-Type": "application/merge-patch+json"}


@pytest.fixture
def url(http: TestClient) -> str:
    """The address of a job that is over."""
    made = http.post("/v1/jobs", json=EXAMPLE_JOB | {"labels": {"team": "red"}}).headers["location"]
    http.post(f"{made}:cancel")
    return str(made)


def patched(http: TestClient, url: str, patch: Any, **headers: str) -> Any:
    return http.patch(url, content=json.dumps(patch), headers=MERGE_PATCH | headers)


def test_an_edit_answers_the_job_and_its_new_etag(http: TestClient, url: str) -> None:
    etag = http.get(url).headers["etag"]

    answer = patched(http, url, {"labels": {"paper": "2"}, "notes": "for the paper"}, **{"If-Match": etag})

    assert answer.status_code == 200
    assert answer.json()["labels"] == {"team": "red", "paper": "2"}
    assert answer.headers["etag"] == http.get(url).headers["etag"] != etag
    assert patched(http, url, {"notes": ""}, **{"If-Match": etag}).status_code == 412
    assert http.get(url).json()["notes"] == "for the paper"


@pytest.mark.parametrize(
    ("patch", "pointer", "said"),
    [
        ({"name": "another"}, "/name", "there is no field `name`; available: labels, notes, archived"),
        ({"note": "x"}, "/note", "did you mean `notes`?"),
        ({"budget": {"seconds": 1}}, "/budget", "there is no field `budget`"),
        ({"notes": "x" * 10_001}, "/notes", "10000"),
        ({"notes": "a\0"}, "/notes", "NUL"),
        ({"labels": {"a b": "x"}}, "/labels/a b", "pattern"),
        ({"labels": {"team": "x\n"}}, "/labels/team", "control characters"),
        ({"archived": "soon"}, "/archived", "boolean"),
    ],
)
def test_what_cannot_be_edited_is_refused_by_its_name(
    http: TestClient, url: str, patch: Any, pointer: str, said: str
) -> None:
    answer = patched(http, url, patch)

    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["pointer"] == pointer and said in error["message"]


def test_a_deleted_job_is_gone_for_everybody(http: TestClient, store: Store, url: str) -> None:
    job_id = url.rpartition("/")[2]
    assert http.delete(url, headers={"If-Match": '"0"'}).status_code == 412

    assert http.delete(url).status_code == 204

    gone = [http.delete(url), patched(http, url, {"notes": "x"}), http.post(f"{url}:retry")]
    gone += [http.get(f"{url}{what}") for what in ("", "/trials", "/events", "/snapshot", "/logs", "/artifacts")]
    assert [each.status_code for each in gone] == [404] * len(gone)
    assert all(job_id in each.json()["detail"] for each in gone)
    (event,) = http.get("/v1/events", params={"kind": "job_deleted"}).json()["events"]
    assert event["job_id"] == job_id
    driver = {"Authorization": f"Bearer {store.attempts.token(job_id, 1)}"}
    assert http.get(f"/v1/attempts/{job_id}/1", headers=driver).status_code == 404


def test_a_job_that_runs_is_not_deleted_and_the_answer_names_the_verb(http: TestClient, reporting: Reporting) -> None:
    reporting.start("tuned")

    answer = http.delete(f"/v1/jobs/{reporting.job_id}")

    assert answer.status_code == 409
    assert answer.json()["type"] == "/problems/illegal-transition"
    assert "`cancel` it first" in answer.json()["detail"]


def test_lists_are_narrowed_ordered_and_counted_by_parameters(http: TestClient, url: str) -> None:
    for name in ("beta", "alpha"):
        http.post("/v1/jobs", json=EXAMPLE_JOB | {"name": name, "labels": {"team": "red", "paper": "2"}})
    patched(http, url, {"archived": True})

    def names(query: str) -> list[str]:
        return [job["name"] for job in http.get(f"/v1/jobs?{query}").json()["jobs"]]

    assert names("order_by=name") == ["alpha", "beta"]
    assert names("order_by=-name&label=team=red&label=paper=2") == ["beta", "alpha"]
    assert names("state=queued&state=running&text=alph") == ["alpha"]
    assert names("archived=true") == [EXAMPLE_JOB["name"]]
    assert (
        names("owner=nobody") == names("created_after=2100-01-01") == names("created_before=2001-01-01T00:00:00Z") == []
    )
    assert http.get("/v1/jobs?archived=any&limit=1&count=true").json()["total"] == 3


def test_a_list_tells_on_request_how_far_its_jobs_are(http: TestClient, reporting: Reporting) -> None:
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=2.0, density=0.01)
    http.post("/v1/jobs", json=EXAMPLE_JOB)

    (job,) = http.get("/v1/jobs", params={"progress": True, "id": [reporting.job_id, "job-none"]}).json()["jobs"]
    progress = job["progress"]

    assert (job["version"], job["verbs"]) == (
        http.get(f"/v1/jobs/{job['id']}").json()["version"],
        ["pause", "stop", "cancel", "steer"],
    )
    assert (progress["arm"], progress["learning_rate"], progress["level"]) == ("tuned", 2.0, 0.01)
    assert progress["level_name"] == "density"
    assert (progress["num_finished"], progress["num_trials"]) == (0, 2)
    assert 0 < progress["share"] < 1 and progress["seconds_left"] > 0
    assert progress["losses"] == sorted(progress["losses"], reverse=True) and len(progress["losses"]) == 5
    assert http.get("/v1/jobs").json()["jobs"][0]["progress"] is None


def test_a_list_has_on_request_what_its_jobs_were_told_and_what_they_have_used(
    http: TestClient, reporting: Reporting
) -> None:
    reporting.run_to_the_end()
    bills = [each.bill for each in reporting.store.trials(reporting.job_id)]
    pointers = ["/budget/seconds", "/arms/1/exchange/kind", "/arms/9/name", "/no/such"]

    (job,) = http.get("/v1/jobs", params={"field": pointers, "bill": True}).json()["jobs"]
    (bare,) = http.get("/v1/jobs").json()["jobs"]

    assert job["fields"] == dict(zip(pointers, (40.0, "none", None, None), strict=True))
    assert job["bill"]["bytes_sent"] == sum(each.bytes_sent for each in bills) > 0
    assert job["bill"]["seconds_training"] == pytest.approx(sum(each.seconds_training for each in bills))
    assert (bare["fields"], bare["bill"]) == (None, None)
    assert http.get("/v1/jobs?field=budget.seconds").json()["errors"][0]["pointer"].startswith("/field")


def test_a_sum_of_bills_is_null_where_an_earlier_release_did_not_measure() -> None:
    stored = [Bill(steps=2, bytes_of_all=5).model_dump(mode="json"), {"steps": 3, "of_a_newer_release": 1}]

    total = queries._sum(stored)

    assert (total.steps, total.bytes_sent, total.bytes_of_all) == (5, 0, None)


def test_a_cursor_of_another_order_is_refused_by_name(http: TestClient, url: str) -> None:
    http.post("/v1/jobs", json=EXAMPLE_JOB)
    cursor = http.get("/v1/jobs?order_by=name&limit=1").json()["next_cursor"]

    answer = http.get("/v1/jobs", params={"order_by": "state", "cursor": cursor})

    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/cursor"]


@pytest.mark.parametrize(
    "cursor", ["!", "bm8", "WyJuYW1lIiwxLDJd", "WyJjcmVhdGVkIl0", "Wy1d", "WyItY3JlYXRlZCIsIlx1MDAwMCJd"]
)
def test_a_cursor_that_was_not_given_out_is_refused(http: TestClient, cursor: str) -> None:
    assert http.get("/v1/jobs", params={"cursor": cursor}).status_code == 422


@pytest.fixture
def files(http: TestClient, reporting: Reporting) -> list[dict[str, Any]]:
    """The artifacts of a job that has trained, with a complete checkpoint, half of one, and a log."""
    reporting.run_to_the_end()
    storage = reporting.store.storage
    folder = storage.attempt_url(reporting.job_id, 1)
    whole = f"{folder}/{reporting.trial('tuned')}/000001-step-100"
    storage.write(f"{whole}/shared.safetensors", bytes(200))
    shard = {"name": "shared.safetensors", "sha256": hashlib.sha256(bytes(200)).hexdigest()}
    storage.write(f"{whole}/manifest.json", json.dumps({"shards": [shard]}).encode())
    storage.write(storage.log_url(reporting.job_id, 1), b"a line\n")
    found: list[dict[str, Any]] = http.get(f"/v1/jobs/{reporting.job_id}/artifacts").json()
    return found


def test_artifacts_are_the_files_that_there_are_and_each_is_where_its_href_says(
    http: TestClient, reporting: Reporting, files: list[dict[str, Any]]
) -> None:
    job_id, tuned, dense = reporting.job_id, reporting.trial("tuned"), reporting.trial("dense")

    assert [each["name"] for each in files] == [
        *("report.json", "metrics.csv", f"{tuned}.schedule.json", f"{dense}.schedule.json"),
        *(f"{trial}.{which}.weights.safetensors" for trial in (tuned, dense) for which in ("best", "last")),
        *("attempt-1.log", f"attempt-1/{tuned}/000001-step-100"),
    ]
    for each in files:
        answer = http.get(each["href"])
        assert answer.status_code == 200
        assert answer.headers["content-type"].partition(";")[0] in (each["media_type"], "application/octet-stream")
        if each["num_bytes"] is not None and each["kind"] != "checkpoint":
            assert len(answer.content) == each["num_bytes"] and each["created_at"]
    (checkpoint,) = (each for each in files if each["kind"] == "checkpoint")
    assert checkpoint["num_bytes"] > 200 and checkpoint["trial_id"] == tuned
    beside = checkpoint["href"].replace("manifest.json", "shared.safetensors")
    answer = http.get(beside)
    assert answer.content == bytes(200)
    assert answer.headers["repr-digest"] == repr_digest(bytes(200))
    assert http.get(beside, headers={"If-None-Match": answer.headers["etag"]}).status_code == 304
    assert job_id in beside


def repr_digest(content: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"


@pytest.mark.parametrize("name", ["manifest.json", "x/manifest.json", "a/b/c/manifest.json", "x.log", "attempt-x.log"])
def test_a_file_that_a_job_left_elsewhere_is_no_checkpoint_and_no_log(
    http: TestClient, reporting: Reporting, files: list[dict[str, Any]], name: str
) -> None:
    storage = reporting.store.storage
    storage.write(storage.file_url(reporting.job_id, name), b"{}")

    assert http.get(f"/v1/jobs/{reporting.job_id}/artifacts").json() == files


@pytest.mark.parametrize(
    "manifest",
    [
        b"[]",
        b'"shards"',
        b'{"shards": 1}',
        b'{"shards": [1]}',
        b'{"shards": [{"name": "shared.safetensors"}]}',
        b'{"shards": [{"name": "shared.safetensors", "sha256": "no digits"}]}',
        b"[" * 100_000,
        b" " * 8_000_000 + b'{"shards": [{"name": "shared.safetensors", "sha256": "' + b"0" * 64 + b'"}]}',
    ],
    ids=["a list", "a text", "a number", "numbers", "no hash", "no digits", "depth", "length"],
)
def test_a_file_beside_a_manifest_that_is_none_has_no_hash(
    http: TestClient, reporting: Reporting, files: list[dict[str, Any]], manifest: bytes
) -> None:
    (checkpoint,) = (each for each in files if each["kind"] == "checkpoint")
    path = checkpoint["href"].partition("/files/")[2]
    storage = reporting.store.storage
    storage.write(storage.file_url(reporting.job_id, path), manifest)

    answer = http.get(checkpoint["href"].replace("manifest.json", "shared.safetensors"))

    assert (answer.status_code, answer.content) == (200, bytes(200))
    assert "repr-digest" not in answer.headers


def test_weights_come_with_the_hash_that_their_worker_took(http: TestClient, files: list[dict[str, Any]]) -> None:
    found = [each for each in files if each["kind"] == "weights"]

    for each in found:
        answer = http.get(each["href"])
        assert answer.headers["repr-digest"] == repr_digest(answer.content)
        assert each["sha256"] == hashlib.sha256(answer.content).hexdigest()
    assert len(found) == 4


def test_a_job_that_has_not_begun_has_a_report_alone(http: TestClient) -> None:
    url = http.post("/v1/jobs", json=EXAMPLE_JOB).headers["location"]

    assert [each["kind"] for each in http.get(f"{url}/artifacts").json()] == ["report"]


@pytest.mark.parametrize(("path", "status"), [("attempt-1", 404), ("none", 404), ("%2e%2e/x", 422), ("a%00", 422)])
def test_no_file_but_the_jobs_own_is_given(http: TestClient, reporting: Reporting, path: str, status: int) -> None:
    reporting.save("tuned")

    assert http.get(f"/v1/jobs/{reporting.job_id}/files/{path}").status_code == status
