"""Numbers too large for a column, and values of a wrong type, are refused with their place, never with a 500."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.wire.records import MAX_WHOLE, Batch, Bill
from tests.api.conftest import Reporting
from tests.support.decisions import decision

TOO_LARGE = MAX_WHOLE + 1


@pytest.fixture
def running(reporting: Reporting) -> Reporting:
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=0.1, density=0.01)
    return reporting


def post(http: TestClient, running: Reporting, record: dict[str, Any]) -> Any:
    """Report `record` as the attempt's driver does, as JSON."""
    token = running.store.attempts.token(running.job_id, running.number)
    named = {"trial_id": running.trial("tuned")} if record["kind"] != "attempt_finished" else {}
    batch = {"stream": "elsewhere", "sequence": 1, "records": [named | record]}
    batch["stream"] = running.trial("tuned")
    url = f"/v1/attempts/{running.job_id}/{running.number}/records"
    return http.post(url, json=batch, headers={"Authorization": f"Bearer {token}"})


def pointers(answer: Any) -> list[str]:
    assert answer.status_code == 422, answer.text
    return [error["pointer"] for error in answer.json()["errors"]]


BILL = Bill().model_dump(mode="json")
CHECKPOINT = {"kind": "checkpoint", "stage": 0, "step": 3, "bill": BILL, "resume": {}}
POINTS = {"kind": "metrics", "name": "loss", "steps": [1], "seconds": [1.0], "values": [1.0]}


@pytest.mark.parametrize(
    ("record", "at"),
    [
        (POINTS | {"steps": [TOO_LARGE]}, "/steps/0"),
        (POINTS | {"steps": [-1]}, "/steps/0"),
        (CHECKPOINT | {"stage": TOO_LARGE}, "/stage"),
        (CHECKPOINT | {"step": TOO_LARGE}, "/step"),
        (CHECKPOINT | {"steady": 1}, "/steady"),
        (CHECKPOINT | {"bill": BILL | {"steps": TOO_LARGE}}, "/bill/steps"),
        ({"kind": "billed", "bill": BILL | {"bytes_sent": TOO_LARGE}}, "/bill/bytes_sent"),
        ({"kind": "attempt_finished", "outcome": "failed", "retry": 0}, "/retry"),
    ],
)
def test_a_record_with_a_number_that_no_column_holds_is_refused_with_its_place(
    http: TestClient, running: Reporting, record: dict[str, Any], at: str
) -> None:
    assert pointers(post(http, running, record)) == [f"/records/0{at}"]


def test_the_largest_number_is_stored_and_read(http: TestClient, running: Reporting) -> None:
    for record in (POINTS | {"steps": [MAX_WHOLE]}, {"kind": "billed", "bill": BILL | {"steps": MAX_WHOLE}}):
        running.store.attempts.ingest(running.job_id, 1, _batch(running, record))

    (trial, _) = http.get(f"/v1/jobs/{running.job_id}/trials").json()
    assert (trial["step"], trial["bill"]["steps"]) == (MAX_WHOLE, MAX_WHOLE)
    assert http.get(f"/v1/jobs/{running.job_id}/metrics/loss").status_code == 200


def _batch(running: Reporting, record: dict[str, Any]) -> Batch:
    running._sequence += 1
    named = record | {"trial_id": running.trial("tuned")}
    return Batch.model_validate({"stream": "driver", "sequence": running._sequence, "records": [named]})


@pytest.mark.parametrize("number", [TOO_LARGE, 10**30, "9" * 5000, 0, -1, "one", "%00"])
def test_an_attempt_that_cannot_be_is_refused_before_its_body_is_read(http: TestClient, number: Any) -> None:
    for method, path in (("GET", ""), ("POST", "/records"), ("POST", "/lease")):
        answer = http.request(method, f"/v1/attempts/job-1/{number}{path}", content=b"no JSON")

        assert answer.status_code == 401


@pytest.mark.parametrize(
    ("path", "name"),
    [("logs", "attempt"), ("logs", "offset"), ("weights", "seed"), ("schedule", "seed"), ("metrics.csv", "seed")],
)
def test_a_parameter_that_no_column_holds_is_refused(
    http: TestClient, reporting: Reporting, path: str, name: str
) -> None:
    for value in (TOO_LARGE, 10**5000, -1):
        digits = "9" * 5000 if value > 10**100 else str(value)
        assert pointers(http.get(f"/v1/jobs/{reporting.job_id}/{path}?{name}={digits}")) == [f"/{name}"]


@pytest.mark.parametrize(
    "text", ["seeds: [0x{}]", "name: 0x{}", "budget: {{steps: 0x{}}}", "? 0x{}\n: 1", "labels: {{a: 0x{}}}"]
)
def test_a_very_long_number_is_refused_with_its_place(http: TestClient, text: str) -> None:
    for path in ("/v1/jobs", "/v1/jobs:validate"):
        answer = http.post(path, content=text.format("f" * 9000), headers={"Content-Type": "application/yaml"})

        assert pointers(answer) == [""]
        assert "an integer has 9002 characters; at most 100 are allowed" in answer.json()["detail"]


JOB: dict[str, Any] = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 9}}


@pytest.mark.parametrize("name", ["cpus", "gpus"])
def test_a_worker_that_asks_for_next_to_nothing_is_refused(http: TestClient, name: str) -> None:
    answer = http.post("/v1/jobs", json=JOB | {"workers": {name: 1e-310}})

    assert pointers(answer) == [f"/workers/{name}"]
    assert "at least 0.001, got 1e-310" in answer.json()["detail"]


HUGE = 10**400
SWEEP = JOB | {"params": {"clip": {"uniform": [1, 2]}}}
PERIOD = {"kind": "local_sgd", "period": True}
SGD = {"kind": "sgd", "learning_rate": 0.1}


@pytest.mark.parametrize(
    ("path", "body", "at"),
    [
        ("/v1/jobs", JOB | {"workers": {"per_node": HUGE}}, "/workers/per_node"),
        ("/v1/jobs", JOB | {"objective": {"every": TOO_LARGE}}, "/objective/every"),
        ("/v1/jobs", JOB | {"optimizer": SGD | {"warmup_steps": HUGE}}, "/optimizer/warmup_steps"),
        ("/v1/jobs", JOB | {"controller": {"kind": "bo", "min_probe_steps": HUGE}}, "/controller/min_probe_steps"),
        ("/v1/jobs", JOB | {"params": {"accumulate": {"integer": [1, HUGE]}}}, "/params/accumulate/integer/1"),
        ("/v1/jobs", SWEEP | {"sweep": {"first_rung": 1e-309}}, "/sweep/first_rung"),
        ("/v1/jobs/{job}:steer", {"pin": {"learning_rate": HUGE}}, "/pin/learning_rate"),
        ("/v1/predictions", {"job": JOB, "compute_ms": 1, "mbps": 1, "dense_steps": HUGE}, "/dense_steps"),
        ("/v1/keys", {"name": "k", "expires_at": "9999-12-31T23:59:59-12:00"}, "/expires_at"),
    ],
)  # fmt: skip
def test_a_number_or_a_moment_that_is_too_large_is_refused_with_its_place(
    http: TestClient, reporting: Reporting, path: str, body: dict[str, Any], at: str
) -> None:
    assert pointers(http.post(path.format(job=reporting.job_id), json=body)) == [at]


def test_the_largest_whole_number_is_one(http: TestClient) -> None:
    assert http.post("/v1/jobs", json=JOB | {"objective": {"every": MAX_WHOLE}}).status_code == 202
    asked = {"job": JOB, "compute_ms": 1, "mbps": 1, "dense_steps": MAX_WHOLE}
    assert http.post("/v1/predictions", json=asked).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "at"),
    [
        ("/v1/jobs", JOB | {"workers": {"count": True}}, "/workers/count"),
        ("/v1/jobs", JOB | {"seeds": [0, True]}, "/seeds/1"),
        ("/v1/jobs", JOB | {"optimizer": SGD | {"learning_rate": True}}, "/optimizer/learning_rate"),
        ("/v1/jobs", JOB | {"arms": [{"name": "a", "sync": PERIOD}]}, "/arms/0/sync/period"),
        ("/v1/jobs", JOB | {"params": {"clip": {"choice": [2.0, True]}}}, "/params/clip/choice/1"),
        ("/v1/jobs/{job}:steer", {"veto": {"learning_rate": {"above": True}}}, "/veto/learning_rate/above"),
        ("/v1/jobs/{job}:steer", {"clear": [True]}, "/clear/0"),
    ],
)  # fmt: skip
def test_a_truth_value_is_no_number(
    http: TestClient, reporting: Reporting, path: str, body: dict[str, Any], at: str
) -> None:
    answer = http.post(path.format(job=reporting.job_id), json=body)

    assert pointers(answer) == [at]
    assert "must be a number, got " in answer.json()["detail"]


def test_a_truth_value_is_no_limit_of_a_quota(http: TestClient) -> None:
    assert pointers(http.put("/v1/quotas/owner/anna", json={"workers": True})) == ["/workers"]


def test_truth_values_stay_where_they_belong(http: TestClient) -> None:
    body = JOB | {"optimizer": SGD | {"nesterov": True}, "controller": {"kind": "bo", "promote": False}}

    assert http.post("/v1/jobs", json=body).status_code == 202


@pytest.mark.parametrize("posterior", ["a word", {"axes": []}, {"axes": [], "mean": [1, 2], "std": [1]}])
def test_a_posterior_that_is_no_grid_is_refused(http: TestClient, running: Reporting, posterior: Any) -> None:
    made = decision(1).model_dump(mode="json") | {"posterior": posterior}
    fields = running.store.stages(running.job_id)[0].model_dump(mode="json")
    names = (
        "first_step", "learning_rate", "level", "reason", "switched", "probability", "forecast", "forecast_std",
        "search_seconds", "search_steps", "search_bytes",
    )  # fmt: skip
    record = {"kind": "stage_decided", "stage": 1, "decision": made} | {name: fields[name] for name in names}

    assert all(each.startswith("/records/0/decision/posterior") for each in pointers(post(http, running, record)))
    assert http.get(f"/v1/jobs/{running.job_id}/stages?posterior=true").status_code == 200
