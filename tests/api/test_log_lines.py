"""The service's log in JSON: each line names its request, job and attempt, and no secrets."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.cli.local import start_server, stop_server
from api.client import Client
from api.failures import ApiError
from api.http.examples import EXAMPLE_JOB
from service.control.store import Store
from service.job.spec import JobSpec
from service.log_lines import JsonLines, LogFormat, log_fields
from service.settings import Settings


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, object]]]:
    """What was logged, line by line, with the fields that each had when it was."""
    said: list[str] = []
    handler = logging.Handler()
    handler.setFormatter(JsonLines({}))
    handler.emit = lambda record: said.append(handler.format(record))  # type: ignore[method-assign]
    caplog.set_level(logging.INFO)
    logging.getLogger().addHandler(handler)
    return lambda: [json.loads(line) for line in said]


@pytest.fixture(autouse=True)
def _same_handlers() -> Iterator[None]:
    before = list(logging.getLogger().handlers)
    yield
    logging.getLogger().handlers = before


def test_an_answer_its_problem_and_its_lines_have_one_id(http: TestClient, lines) -> None:
    refused = http.post("/v1/jobs", json={"workload": {"kind": "no-such-thing"}})

    given = refused.headers["X-Request-ID"]
    assert refused.json()["request_id"] == given
    assert [line["request_id"] for line in lines() if line.get("operation") == "createJob"] == [given]


def test_the_id_of_a_caller_is_taken_unless_it_could_forge_a_line(http: TestClient) -> None:
    assert http.get("/healthz", headers={"X-Request-ID": "from-proxy.7"}).headers["X-Request-ID"] == "from-proxy.7"
    for forged in ('a" b', "x" * 65, "a/b"):
        assert http.get("/healthz", headers={"X-Request-ID": forged}).headers["X-Request-ID"] != forged


def test_a_fault_of_the_service_names_the_request_too(http: TestClient, lines, monkeypatch) -> None:
    monkeypatch.setattr(Store, "answer", lambda self: 1 / 0)

    answer = http.get("/readyz")

    given = answer.headers["X-Request-ID"]
    assert (answer.status_code, answer.json()["request_id"]) == (500, given)
    [line] = [line for line in lines() if line["level"] == "ERROR"]
    assert line["request_id"] == given and "ZeroDivisionError" in line["error"]


def test_a_submission_and_a_verb_name_their_job(http: TestClient, lines) -> None:
    job_id = http.post("/v1/jobs", json=EXAMPLE_JOB).json()["id"]
    http.post(f"/v1/jobs/{job_id}:cancel")

    of_job = [line for line in lines() if line.get("job") == job_id]
    assert f"job {job_id} is submitted" in [line["message"] for line in of_job]
    assert "cancelJob" in [line.get("operation") for line in of_job]


def test_fields_end_with_their_block_and_belong_to_one_thread(lines) -> None:
    with log_fields(job="a"):
        with log_fields(attempt=2):
            logging.warning("inside")
        logging.warning("outside")

    inside, outside = lines()
    assert (inside["job"], inside["attempt"]) == ("a", 2)
    assert outside["job"] == "a" and "attempt" not in outside


def test_a_process_of_an_attempt_names_job_attempt_and_trial_in_every_thread() -> None:
    program = """
import logging, threading
from service.cluster.attempt import configure_process
configure_process("wiretune-trial", trial="j-t0")
thread = threading.Thread(target=logging.getLogger("wiretune.driver").info, args=("%d steps", 7))
thread.start(); thread.join()
"""
    environment = {"WIRETUNE_LOG_FORMAT": "json", "WIRETUNE_JOB": "j", "WIRETUNE_ATTEMPT": "3"}
    printed = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | environment, capture_output=True, text=True, check=True
    )

    line = json.loads(printed.stderr)
    assert (line["job"], line["attempt"], line["trial"], line["message"]) == ("j", "3", "j-t0", "7 steps")


def test_a_service_that_logs_json_logs_nothing_else_and_no_secret(settings: Settings, tmp_path: Path) -> None:
    wrong = "wtk_" + "0" * 40
    apart = {"port": 0, "log_format": LogFormat.JSON, "ray_address": "http://127.0.0.1:9"}  # where no Ray is
    started = start_server(settings.model_copy(update=apart))
    try:
        with Client(*started) as client:
            job_id = client.submit(JobSpec.model_validate(EXAMPLE_JOB)).id
            client.cancel(job_id)
            key = client.create_key("anna-laptop", role="viewer").secret
        with Client(started.url, wrong) as stranger, pytest.raises(ApiError, match="401"):
            stranger.jobs()
    finally:
        stop_server(settings)

    text = (settings.state_dir / "server.log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert {job_id} <= {line.get("job") for line in lines}
    secrets = [started.key, key, wrong, (settings.state_dir / "secret").read_text().strip()]
    assert not [secret for secret in secrets if secret in text]
