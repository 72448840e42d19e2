"""The HTTP routes over a real store."""

import json
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx2
import pytest
import yaml
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.routing import Mount

from api.http.app import OPERATIONS, create_app
from api.http.bodies import MAX_JOB_BYTES
from api.http.examples import EXAMPLE_JOB
from service.control.store import Store
from service.errors import Unavailable
from service.job.problems import Problem
from service.job.spec import JobSpec
from tests.api.conftest import Reporting

ROOT = Path(__file__).parents[2]
OPEN_PATHS = {"/", "/docs", "/healthz", "/readyz", "/openapi.json", "/vendor/{name}", "/static/main.js"}
OPEN_PATHS |= {"/v1/sign-in", "/v1/sign-in/callback"}  # which lead to the issuer, and back from it
SIGN_IN = ("POST", "/v1/sessions")  # takes a code instead


def calls(routes: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Every method and path that is served, hidden ones and those of included routers too."""
    for route in routes:
        if hasattr(route, "original_router"):
            yield from calls(route.original_router.routes)
        elif isinstance(route, Mount):
            yield "GET", f"{route.path}/main.js"
        else:
            yield from ((method, route.path.replace(":path", "")) for method in route.methods)


def refused(response: Any, status: int, slug: str) -> dict[str, Any]:
    """The problem document of a refusal."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert document["type"] == f"/problems/{slug}" and document["status"] == status
    assert document["title"] and document["detail"]
    return document


def test_everything_but_health_and_page_is_closed_without_a_key(anonymous: TestClient) -> None:
    app: FastAPI = anonymous.app  # type: ignore[assignment]
    closed = [call for call in calls(app.routes) if call[1] not in OPEN_PATHS and call != SIGN_IN]
    assert len(closed) >= 17

    names = {
        "job": "job-1",
        "trial": "job-1.tuned.0",
        "key": "key-1",
        "code": f"sha256:{0:064x}",
        "kind": "owner",
        "number": 1,
        "name": "loss",
        "path": "x",
    }
    answers = {(method, path): anonymous.request(method, path.format(**names)) for method, path in closed}

    for answer in answers.values():
        refused(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("key", ["", "wt_wrong", "é".encode("latin-1").decode("latin-1")])
def test_a_wrong_key_is_refused(anonymous: TestClient, key: str) -> None:
    response = anonymous.get("/v1/jobs", headers={"Authorization": f"Bearer {key}".encode()})

    refused(response, 401, "unauthorized")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/", "/docs", "/openapi.json", "/static/main.js"])
def test_health_and_page_need_no_key(anonymous: TestClient, path: str) -> None:
    assert anonymous.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_page_can_be_asked_for_its_headers_alone(live_url: str, path: str) -> None:
    plain = {"Accept-Encoding": "identity"}
    asked, whole = (
        httpx2.request(method, live_url + path, headers=plain, trust_env=False) for method in ("HEAD", "GET")
    )

    assert asked.status_code == 200 and asked.content == b""
    assert asked.headers["content-length"] == str(len(whole.content))


def test_what_is_answered_at_once_can_be_asked_for_its_headers_alone(
    live_url: str, key: str, reporting: Reporting
) -> None:
    reporting.run_to_the_end()
    headers = {"Authorization": f"Bearer {key}", "Accept-Encoding": "identity"}
    with httpx2.Client(base_url=live_url, headers=headers, trust_env=False) as client:
        for path in (
            "/healthz",
            "/v1/jobs",
            f"/v1/jobs/{reporting.job_id}/report",
            f"/v1/jobs/{reporting.job_id}/weights",
        ):
            asked, whole = client.head(path), client.get(path)

            assert (asked.status_code, asked.content) == (200, b"")
            assert asked.headers["content-length"] == str(len(whole.content))
        assert client.head("/v1/jobs/job-0").status_code == 404


def test_a_stream_cannot_be_asked_for_its_headers_alone(http: TestClient) -> None:
    streams = {
        path: method["operationId"]
        for path, methods in http.get("/openapi.json").json()["paths"].items()
        for name, method in methods.items()
        if name == "get" and method["responses"]["200"].get("content", {}).keys() - {"application/json"}
    }
    for path in ("/metrics", "/v1/jobs/{job}/weights", "/v1/jobs/{job}/files/{path}", "/v1/code/{code}/content"):
        streams.pop(path)  # their headers are known before the first byte

    assert sorted(streams.values()) == sorted(each.id for each in OPERATIONS if each.is_stream)
    for path in streams:
        refusal = http.head(path.format(job="job-0", path="x"))
        assert (refusal.status_code, refusal.headers["allow"]) == (405, "GET")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/jobs", "GET, HEAD, POST"),
        ("POST", "/v1/jobs/job-0", "DELETE, GET, HEAD, PATCH"),
        ("PUT", "/v1/jobs/job-0/logs", "GET"),
    ],
)
def test_a_method_that_a_path_does_not_take_is_refused_with_all_that_it_does(
    http: TestClient, method: str, path: str, allowed: str
) -> None:
    refusal = http.request(method, path)

    assert (refusal.status_code, refusal.headers["allow"]) == (405, allowed)


def test_a_submitted_job_is_found_where_the_answer_says(http: TestClient) -> None:
    response = http.post("/v1/jobs", json=EXAMPLE_JOB)

    assert response.status_code == 202
    assert http.get(response.headers["location"]).json() == response.json()
    assert response.json()["state"] == "queued"


def test_yaml_and_json_make_the_same_job(http: TestClient) -> None:
    headers = {"Content-Type": "application/yaml"}
    by_yaml = http.post("/v1/jobs", content=yaml.safe_dump(EXAMPLE_JOB), headers=headers)
    by_json = http.post("/v1/jobs", json=EXAMPLE_JOB)

    assert by_yaml.json()["spec"] == by_json.json()["spec"]


def test_one_idempotency_key_makes_one_job(http: TestClient) -> None:
    answers = [http.post("/v1/jobs", json=EXAMPLE_JOB, headers={"Idempotency-Key": "once"}) for _ in range(3)]

    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(http.get("/v1/jobs").json()["jobs"]) == 1


def test_an_idempotency_key_is_refused_for_another_job(http: TestClient) -> None:
    headers = {"Idempotency-Key": "once"}
    http.post("/v1/jobs", json=EXAMPLE_JOB, headers=headers)

    response = http.post("/v1/jobs", json=EXAMPLE_JOB | {"name": "another"}, headers=headers)

    refused(response, 422, "idempotency-key-reused")


def test_an_idempotency_key_is_refused_for_the_same_job_from_another_source(http: TestClient) -> None:
    source, other = (http.post("/v1/jobs", json=EXAMPLE_JOB).json()["id"] for _ in range(2))
    headers = {"Idempotency-Key": "once"}
    first, again, elsewhere = (
        http.post("/v1/jobs", params={"source": each}, json=EXAMPLE_JOB, headers=headers)
        for each in (source, source, other)
    )

    assert first.json()["id"] == again.json()["id"]
    refused(elsewhere, 422, "idempotency-key-reused")
    refused(http.post("/v1/jobs", json=EXAMPLE_JOB, headers=headers), 422, "idempotency-key-reused")


def test_a_past_job_that_cannot_be_learned_from_is_refused_with_its_pointer(http: TestClient) -> None:
    past = http.post("/v1/jobs", json=EXAMPLE_JOB).json()["id"]
    named = EXAMPLE_JOB | {"controller": {"kind": "bo", "transfer": {"jobs": [past, "job-0"]}}}

    for path in ("/v1/jobs", "/v1/jobs:validate"):
        errors = refused(http.post(path, json=named), 422, "invalid-job")["errors"]
        assert [error["pointer"] for error in errors] == [f"/controller/transfer/jobs/{n}" for n in (0, 1)]
        assert errors[0]["message"] == f"job `{past}` is queued; only one that succeeded can be learned from"
    assert len(http.get("/v1/jobs").json()["jobs"]) == 1


def test_a_dry_run_says_which_past_jobs_an_arm_learns_from(http: TestClient) -> None:
    answer = http.post("/v1/jobs:validate", json=EXAMPLE_JOB | {"controller": {"kind": "bo", "transfer": "auto"}})

    assert "arm `tuned` has no past job to learn from, and starts without" in answer.json()["notes"]


def test_a_bad_job_is_refused_with_every_problem_and_its_pointer(http: TestClient) -> None:
    bad = EXAMPLE_JOB | {"workers": {"count": 0, "cpu": 1}, "budget": {}, "exchange": {"kind": "treshold"}}

    document = refused(http.post("/v1/jobs", json=bad), 422, "invalid-job")

    found = {error["pointer"]: error for error in document["errors"]}
    assert set(found) == {"/workers/count", "/workers/cpu", "/budget", "/exchange/kind"}
    assert found["/workers/count"]["value"] == 0
    assert "threshold" in found["/exchange/kind"]["message"]
    assert http.get("/v1/jobs").json()["jobs"] == []


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "application/json"),
        (b'{"name":', "application/json"),
        (b"[1]", "application/json"),
        (b"\xff\xfe", "application/json"),
        (b'{"a": NaN}', "application/json"),
        (b"[" * 5000, "application/json"),
        (b"a: [", "application/yaml"),
        (b"\x00", "application/yaml"),
        (b'{"budget": {"seconds": 1e999}}', "application/json"),
        (b"budget: {seconds: .inf}\nname: 2026-01-01", "application/yaml"),
        (b'name: "\\ud800"', "application/yaml"),
        (b"name: !!binary /w==", "application/yaml"),
    ],
)
def test_any_broken_body_is_refused_and_none_breaks_the_service(http: TestClient, body: bytes, kind: str) -> None:
    response = http.post("/v1/jobs", content=body, headers={"Content-Type": kind})

    document = refused(response, 422, "invalid-job")
    assert document["errors"]


@pytest.mark.parametrize("text", ["a\0b", "two\nlines", "\x1b[31mred", "tab\t", "\x85"])
def test_control_characters_are_refused_in_names_and_labels(http: TestClient, text: str) -> None:
    bad = EXAMPLE_JOB | {"name": text, "labels": {"team": text}}
    plain = http.post("/v1/jobs", json=EXAMPLE_JOB).json()["id"]

    for path, body in (("", bad), (":validate", bad), (f"/{plain}:clone", {"name": text, "labels": {"team": text}})):
        errors = refused(http.post(f"/v1/jobs{path}", json=body), 422, "invalid-job")["errors"]
        assert [error["pointer"] for error in errors] == ["/name", "/labels/team"]
        assert errors[0]["message"].startswith(("must have no control characters", "must have no NUL"))


@pytest.mark.parametrize("kind", ["application/json", "application/yaml"])
@pytest.mark.parametrize(
    ("params", "pointer"),
    [({"text": ["plain", "a\0b"]}, "/workload/params/text/1"), ({"a\0b": 1}, "/workload/params")],
)
def test_a_nul_is_refused_wherever_it_is(http: TestClient, kind: str, params: dict[str, Any], pointer: str) -> None:
    """PostgreSQL reads no JSON that holds one, and so would find no job any more."""
    bad = EXAMPLE_JOB | {"workload": {"kind": "own", "factory": "module:make", "params": params}}
    plain = http.post("/v1/jobs", json=EXAMPLE_JOB).json()["id"]

    for path, body in (("", bad), (":validate", bad), (f"/{plain}:clone", {"workload": bad["workload"]})):
        answer = http.post(f"/v1/jobs{path}", content=json.dumps(body), headers={"Content-Type": kind})
        (error,) = refused(answer, 422, "invalid-job")["errors"]
        assert (error["pointer"], error["message"]) == (pointer, "must have no NUL")


def test_a_name_with_control_characters_of_an_earlier_release_is_read(http: TestClient, store: Store) -> None:
    old = store.add_job(JobSpec.model_validate(EXAMPLE_JOB | {"name": "two\nlines"}))[0].id

    assert http.get(f"/v1/jobs/{old}").json()["name"] == "two\nlines"


def test_a_body_that_unfolds_without_end_is_refused_at_once(http: TestClient) -> None:
    levels = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 60)]
    bomb = "\n".join(["a0: &a0 [x]", *levels])

    response = http.post("/v1/jobs", content=bomb, headers={"Content-Type": "application/yaml"})

    refused(response, 422, "invalid-job")


def test_a_body_over_the_limit_is_refused(http: TestClient) -> None:
    response = http.post("/v1/jobs", content=b" " * (MAX_JOB_BYTES + 1))

    refused(response, 413, "content-too-large")


def test_a_dry_run_fills_in_the_defaults_and_stores_nothing(http: TestClient) -> None:
    answer = http.post("/v1/jobs:validate", json=EXAMPLE_JOB).json()

    assert answer["spec"] == json.loads(JobSpec.model_validate(EXAMPLE_JOB).model_dump_json())
    assert answer["num_trials"] == 2
    assert http.get("/v1/jobs").json()["jobs"] == []


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs:validate"])
def test_a_job_larger_than_the_cluster_is_refused(store: Store, key: str, path: str) -> None:
    problem = Problem(pointer="/workers/count", message="at most 1", value=2)
    client = TestClient(create_app(store, conflicts=lambda spec: [problem]), headers={"Authorization": f"Bearer {key}"})

    document = refused(client.post(path, json=EXAMPLE_JOB), 409, "does-not-fit")

    assert document["errors"] == [problem.model_dump(mode="json")]


def test_pages_show_every_job_once_newest_first(http: TestClient) -> None:
    made = [http.post("/v1/jobs", json=EXAMPLE_JOB).json()["id"] for _ in range(5)]

    seen, cursor = [], None
    while True:
        parameters = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = http.get("/v1/jobs", params=parameters).json()
        seen += [job["id"] for job in page["jobs"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break

    assert seen == made[::-1]


def test_jobs_are_found_by_state_and_label(http: TestClient) -> None:
    wanted = http.post("/v1/jobs", json=EXAMPLE_JOB | {"labels": {"team": "a=b"}}).json()["id"]
    other = http.post("/v1/jobs", json=EXAMPLE_JOB).json()["id"]
    http.post(f"/v1/jobs/{other}:cancel")

    by_label = http.get("/v1/jobs", params={"label": "team=a=b"}).json()["jobs"]
    by_state = http.get("/v1/jobs", params={"state": "cancelled"}).json()["jobs"]

    assert [job["id"] for job in by_label] == [wanted]
    assert [job["id"] for job in by_state] == [other]


@pytest.mark.parametrize(
    ("query", "pointers"),
    [
        ("limit=0", ["/limit"]),
        ("limit=501&label=x", ["/label/0", "/limit"]),
        ("state=asleep", ["/state/0"]),
        ("cursor=%00", ["/cursor"]),
        ("created_after=yesterday", ["/created_after"]),
        ("order_by=loss", ["/order_by"]),
        ("archived=maybe", ["/archived"]),
    ],
)
def test_bad_parameters_are_named(http: TestClient, query: str, pointers: list[str]) -> None:
    response = http.get(f"/v1/jobs?{query}")

    assert response.status_code == 422
    assert sorted(error["pointer"] for error in response.json()["errors"]) == pointers


def test_an_unchanged_job_is_not_sent_again(http: TestClient) -> None:
    url = http.post("/v1/jobs", json=EXAMPLE_JOB).headers["location"]
    etag = http.get(url).headers["etag"]

    unchanged = http.get(url, headers={"If-None-Match": etag})
    http.post(f"{url}:cancel")
    changed = http.get(url, headers={"If-None-Match": etag})

    assert unchanged.status_code == 304 and not unchanged.content
    assert changed.status_code == 200 and changed.headers["etag"] != etag


def test_no_browser_keeps_a_job_whose_tag_is_the_same_in_every_release(http: TestClient) -> None:
    url = http.post("/v1/jobs", json=EXAMPLE_JOB).headers["location"]
    first = http.get(url)
    again = http.get(url, headers={"If-None-Match": first.headers["etag"]})

    assert [each.headers["cache-control"] for each in (first, again)] == ["no-store"] * 2


def test_an_unchanged_job_is_looked_up_in_two_turns_of_a_thread(
    http: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = http.post("/v1/jobs", json=EXAMPLE_JOB).headers["Location"]
    etag, run, turns = http.get(path).headers["ETag"], anyio.to_thread.run_sync, []

    async def counted(function: Any, *arguments: Any, **named: Any) -> Any:
        turns.append(function)
        return await run(function, *arguments, **named)

    monkeypatch.setattr(anyio.to_thread, "run_sync", counted)

    assert http.get(path, headers={"If-None-Match": etag}).status_code == 304
    assert len(turns) == 2  # for the key, and for the version: each costs 0.1 ms of processor


def test_a_job_that_is_over_cannot_be_cancelled(http: TestClient) -> None:
    url = http.post("/v1/jobs", json=EXAMPLE_JOB).headers["location"]

    assert http.post(f"{url}:cancel").json()["state"] == "cancelled"
    document = refused(http.post(f"{url}:cancel"), 409, "illegal-transition")

    assert "cancelled" in document["detail"]


@pytest.mark.parametrize(
    "path", ["", "/trials", "/stages", "/metrics/loss", "/metrics.csv", "/schedule", "/weights", "/report", "/logs"]
)
def test_an_unknown_job_is_not_found(http: TestClient, path: str) -> None:
    refused(http.get(f"/v1/jobs/job-nowhere{path}"), 404, "not-found")


@pytest.mark.parametrize(
    ("method", "path", "status", "slug"),
    [
        ("GET", "/v1/nothing", 404, "not-found"),
        ("DELETE", "/v1/jobs", 405, "method-not-allowed"),
        ("GET", "/static/none.js", 404, "not-found"),
        ("GET", "/static/../app.py", 404, "not-found"),
    ],
)
def test_what_is_not_there_is_a_problem_document_too(
    http: TestClient, method: str, path: str, status: int, slug: str
) -> None:
    refused(http.request(method, path), status, slug)


def test_a_silent_database_is_answered_with_when_to_come_back(
    http: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*args: object, **options: object) -> None:
        raise Unavailable("the database does not answer")

    for name in ("jobs", "answer"):
        monkeypatch.setattr(store, name, silent)

    for path in ("/v1/jobs", "/readyz"):
        response = http.get(path)
        refused(response, 503, "unavailable")
        assert int(response.headers["retry-after"]) >= 1
    assert http.get("/healthz").status_code == 200


def test_the_words_of_the_database_are_for_callers_who_are_known(
    http: TestClient, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    def rename(table: str) -> None:
        with store._db.engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE {table} RENAME TO other_{table}")

    rename("jobs")
    known = refused(http.get("/v1/jobs"), 503, "unavailable")
    rename("api_keys")
    strangers = [http.get(path, headers={"Authorization": "Bearer wt_x"}) for path in ("/readyz", "/v1/jobs")]

    assert "no such table: jobs" in known["detail"]
    for answer in strangers:
        assert refused(answer, 503, "unavailable")["detail"] == "the database does not answer; try again"
    assert "no such table: jobs" in caplog.text and "no such table: api_keys" in caplog.text


def test_an_unexpected_error_tells_nothing_of_the_inside(
    http: TestClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object, **options: object) -> None:
        raise KeyError("a secret of the inside")

    monkeypatch.setattr(store, "jobs", broken)

    response = http.get("/v1/jobs")

    assert "secret" not in response.text
    refused(response, 500, "internal")


def test_openapi_names_every_operation_once_and_defines_what_it_refers_to(anonymous: TestClient) -> None:
    document = anonymous.get("/openapi.json").json()
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    references = {text.split('"')[0] for text in json.dumps(document).split('"#/components/schemas/')[1:]}

    assert document["openapi"].startswith("3.1")
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    assert references <= set(document["components"]["schemas"])
    for operation in operations:
        if operation["tags"] != ["health"]:
            assert "401" in operation["responses"], operation["operationId"]


def test_the_example_of_the_documentation_is_a_valid_job() -> None:
    assert len(list(JobSpec.model_validate(EXAMPLE_JOB).trials())) == 2


OWN = {"workload": {"factory": "mine:build", "weights": "start.safetensors"}, "budget": {"steps": 10}}


def test_own_code_and_files_need_a_service_that_allows_them(store: Store, key: str) -> None:
    strict, lenient = (
        TestClient(create_app(store, user_code=user_code), headers={"Authorization": f"Bearer {key}"})
        for user_code in (False, True)
    )

    for path in ("/v1/jobs", "/v1/jobs:validate"):
        document = refused(strict.post(path, json=OWN), 422, "invalid-job")
        assert [error["pointer"] for error in document["errors"]] == ["/workload/factory", "/workload/weights"]
        assert "WIRETUNE_USER_CODE" in document["errors"][0]["message"]
    assert store.jobs().jobs == ()
    found = {"factory": "mine:build", "weights": "/data/start.safetensors", "path": "/opt/models"}
    assert lenient.post("/v1/jobs", json=OWN | {"workload": found}).status_code == 202


def test_weights_of_another_job_need_no_service_that_allows_code(store: Store, key: str) -> None:
    client = TestClient(create_app(store, user_code=False), headers={"Authorization": f"Bearer {key}"})
    plain = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 10}}
    source = Reporting(store, JobSpec.model_validate(plain))
    source.start("tuned")
    named = {"workload": {"kind": "digits-mlp", "weights_of": {"job": source.job_id}}}
    for path, body in {
        "/v1/jobs": plain | named,
        "/v1/jobs:validate": plain | named,
        f"/v1/jobs/{source.job_id}:clone?dry_run=true": named,
    }.items():
        document = refused(client.post(path, json=body), 422, "invalid-job")
        [error] = document["errors"]
        assert (error["pointer"], error["value"]) == ("/workload/weights_of", f'{{"job":"{source.job_id}"}}')
        assert error["message"].endswith("it has not finished")

    source.finish_trial("tuned", rates=[0.1], density=None, loss=0.5)
    source.finish()

    assert client.post("/v1/jobs:validate", json=plain | named).status_code == 200
    made = client.post("/v1/jobs", json=plain | named)
    assert made.status_code == 202 and made.json()["spec"]["workload"]["weights_of"]["job"] == source.job_id
    assert refused(client.delete(f"/v1/jobs/{source.job_id}"), 409, "illegal-transition")


@pytest.mark.parametrize(
    ("params", "places"),
    [
        ({"workload": {"choice": [{"kind": "digits-mlp"}, {"factory": "os:system"}]}}, ["/params/workload/choice/1"]),
        (
            {"workload.weights": {"choice": [None, "/etc/hostname"]}},
            ["/params/workload.weights/choice/1"],
        ),
    ],
)
def test_no_sample_of_a_sweep_brings_code_or_files_where_a_job_may_not(
    store: Store, key: str, params: dict[str, Any], places: list[str]
) -> None:
    client = TestClient(create_app(store, user_code=False), headers={"Authorization": f"Bearer {key}"})
    job = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 10}, "params": params}

    for path in ("/v1/jobs", "/v1/jobs:validate"):
        document = refused(client.post(path, json=job), 422, "invalid-job")
        assert [error["pointer"] for error in document["errors"]] == places


def test_places_that_differ_between_workers_are_refused(store: Store, key: str) -> None:
    client = TestClient(create_app(store, user_code=True), headers={"Authorization": f"Bearer {key}"})
    workload = OWN["workload"] | {"path": "models"}

    document = refused(client.post("/v1/jobs", json=OWN | {"workload": workload}), 422, "invalid-job")

    assert [error["pointer"] for error in document["errors"]] == ["/workload/weights", "/workload/path"]


def test_a_webhook_that_the_service_would_not_tell_is_refused(http: TestClient, store: Store) -> None:
    hook = EXAMPLE_JOB | {"webhook": {"url": "https://example.com/hook"}}

    for path in ("/v1/jobs", "/v1/jobs:validate"):
        [error] = refused(http.post(path, json=hook), 422, "invalid-job")["errors"]
        assert (error["pointer"], "WIRETUNE_WEBHOOK_SECRET" in error["message"]) == ("/webhook/url", True)
    assert store.jobs().jobs == ()


BODIES = [
    ("/v1/jobs", "application/yaml"),
    ("/v1/jobs:validate", "application/yaml"),
    ("/v1/jobs/{job}:clone", "application/merge-patch+json"),
    ("/v1/jobs/{job}:extend", "application/json"),
    ("/v1/keys", "application/json"),
]


@pytest.mark.parametrize(("path", "named"), BODIES)
@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain; charset=utf-8", "application/xml"])
def test_a_body_of_another_kind_is_refused_with_those_that_are_taken(
    http: TestClient, reporting: Reporting, path: str, named: str, kind: str
) -> None:
    answer = http.post(path.format(job=reporting.job_id), content=b"{}", headers={"Content-Type": kind})

    assert (answer.status_code, answer.json()["type"]) == (415, "/problems/unsupported-media-type")
    assert named in answer.json()["detail"] and kind.partition(";")[0] in answer.json()["detail"]


def every_call() -> list[tuple[str, str]]:
    document = json.loads((ROOT / "docs" / "openapi.json").read_text())
    return [(method, path) for path, methods in document["paths"].items() for method in methods]


@pytest.mark.parametrize(("method", "path"), every_call())
def test_every_route_refuses_a_parameter_that_it_does_not_have(http: TestClient, method: str, path: str) -> None:
    names = {
        "job": "job-0",
        "trial": "t",
        "number": 1,
        "key": "k",
        "code": "c",
        "name": "loss",
        "path": "x",
        "kind": "owner",
    }
    filled = path.format(**names)

    (error,) = refused(http.request(method, f"{filled}?verbose=1"), 422, "invalid-request")["errors"]

    assert error["pointer"] == "/verbose" and "there is no query parameter `verbose`" in error["message"]


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("/v1/jobs?cursor=x", "/cursor"),
        ("/v1/jobs?limit=0", "/limit"),
        ("/v1/jobs/{job}/metrics/loss?first_step=9&last_step=3", "/last_step"),
        ("/v1/code?cursor=x", "/cursor"),
    ],
)
def test_a_bad_parameter_of_a_list_or_a_series_is_a_fault_of_the_request_and_of_no_job(
    http: TestClient, reporting: Reporting, query: str, pointer: str
) -> None:
    (error,) = refused(http.get(query.format(job=reporting.job_id)), 422, "invalid-request")["errors"]

    assert error["pointer"] == pointer


def test_an_unknown_parameter_is_refused_with_the_one_that_was_meant(http: TestClient) -> None:
    errors = http.get("/v1/jobs?stat=running&limt=2&owner=anna").json()["errors"]

    assert [(each["pointer"], each["value"]) for each in errors] == [("/stat", "running"), ("/limt", "2")]
    assert [each["message"].partition("; ")[2] for each in errors] == ["did you mean `state`?", "did you mean `limit`?"]


def test_the_page_takes_the_parameters_of_its_own_scripts(anonymous: TestClient) -> None:
    assert anonymous.get("/?job=job-0").status_code == 200


def test_a_page_can_tell_whether_it_is_of_the_release_that_answers(http: TestClient) -> None:
    me = http.get("/v1/me").json()

    assert me["release"] == version("wiretune")
    assert f'<meta name="release" content="{me["release"]}">' in http.get("/").text


@pytest.fixture
def document(anonymous: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = anonymous.get("/openapi.json").json()
    return found


def documented(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["operationId"]: each for methods in document["paths"].values() for each in methods.values()}


def test_every_operation_documents_how_it_refuses_a_parameter(document: dict[str, Any]) -> None:
    refusals = {name: each["responses"]["422"] for name, each in documented(document).items()}

    assert [name for name, each in refusals.items() if "(`invalid-request`)" not in each["description"]] == []
    for name in ("listJobs", "getJob", "listTrials", "getMetric", "getSnapshot", "getQueue", "listMethods"):
        assert "invalid-job" not in refusals[name]["description"], name


def test_what_names_nothing_does_not_document_that_it_may_be_missing(document: dict[str, Any]) -> None:
    named = {name for name, each in documented(document).items() if "404" in each["responses"]}

    assert not named & {
        "getMe",
        "listKeys",
        "listAudit",
        "createKey",
        "getMetrics",
        "listQuotas",
        "listJobs",
        "getQueue",
    }
    assert {"getKey", "deleteQuota", "getJob", "listMethods", "createJob"} <= named


def test_every_body_and_the_main_answers_have_an_example(document: dict[str, Any]) -> None:
    bodies = {
        name: content["schema"]
        for name, each in documented(document).items()
        for content in each.get("requestBody", {}).get("content", {}).values()
        if "example" not in content
    }
    shown = {
        name
        for name, each in documented(document).items()
        for status, answer in each["responses"].items()
        if status < "300" and "examples" in answer.get("content", {}).get("application/json", {})
    }

    assert list(bodies) == ["createCode"]  # a zip
    assert shown >= {"createJob", "listJobs", "getJob", "updateJob", "cloneJob", "listArtifacts", "getSchedule"}
    assert shown >= {"listEvents", "createKey", "listKeys", "getMe", "listAudit", "listCode", "addRecords", "getMetric"}
    named = {text.split('"')[0] for text in json.dumps(document["paths"]).split('"#/components/examples/')[1:]}
    assert named == set(document["components"]["examples"])


def test_headers_of_the_document_are_those_of_the_answers(http: TestClient, document: dict[str, Any]) -> None:
    made = http.post("/v1/jobs", json=EXAMPLE_JOB)
    url = made.headers["location"]
    found = http.get(url)
    answers = {
        ("createJob", "202"): made,
        ("getJob", "200"): found,
        ("getJob", "304"): http.get(url, headers={"If-None-Match": found.headers["etag"]}),
        ("getSnapshot", "200"): http.get(f"{url}/snapshot"),
        ("updateJob", "200"): http.patch(url, json={"notes": "x"}),
        ("cloneJob", "202"): http.post(f"{url}:clone", json={"name": "another"}),
        ("exportMetrics", "200"): http.get(f"{url}/metrics.csv"),
        ("listJobs", "200"): http.get("/v1/jobs"),
        ("createKey", "201"): http.post("/v1/keys", json={"name": "ci"}),
        ("listJobs", "401"): http.get("/v1/jobs", headers={"Authorization": "Bearer wt_wrong"}),
    }

    for (operation, status), answer in answers.items():
        assert str(answer.status_code) == status
        said = set(documented(document)[operation]["responses"][status].get("headers", {}))
        given = {name for name in document["components"]["headers"] if name in answer.headers}
        assert said == given, operation


def test_what_makes_a_job_links_to_all_that_can_be_done_with_it(http: TestClient, document: dict[str, Any]) -> None:
    operations = documented(document)

    links = operations["createJob"]["responses"]["202"]["links"]

    assert {"getJob", "updateJob", "deleteJob", "cancelJob", "listTrials", "getReport", "listArtifacts"} <= set(links)
    assert set(links) <= set(operations) and "getMetric" not in links
    assert links["getJob"]["parameters"] == {"job": "$response.body#/id"}
    assert operations["cloneJob"]["responses"]["202"]["links"]["getJob"]["parameters"] == {
        "job": "$response.body#/job/id"
    }
