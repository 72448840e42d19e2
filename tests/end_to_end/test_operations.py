"""A job on an embedded Ray as an operator sees it: traces of every process, and a backup that resumes."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load

from api.cli.local import start_server, stop_server
from api.client import Client
from api.local_service import Server
from service import tracing
from service.control import backup
from service.control.processes import wait_until
from service.job.states import JobState
from service.settings import Settings
from tests.support.otlp_receiver import receiving
from tests.support.s3_server import BUCKET, S3Server

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(900)]

JOB: dict[str, Any] = {
    "workload": {"kind": "digits-mlp"},
    "exchange": {"kind": "threshold", "density": [0.003, 0.1]},
    "controller": {"kind": "bo", "max_search_fraction": 0.5},
    "budget": {"steps": 400},
}


@contextmanager
def served(settings: Settings) -> Iterator[Server]:
    try:
        yield start_server(settings)
    finally:
        stop_server(settings)


def test_a_job_is_one_trace_from_its_submission_to_its_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        with served(Settings(state_dir=tmp_path / "state", port=0)) as server, Client(*server) as client:
            job_id = client.submit(JOB).id
            assert client.wait(job_id, timeout_s=600).state is JobState.SUCCEEDED

    trace_id = tracing.ids_of(job_id)[0].to_bytes(16, "big")
    of_job = {name: [span for _, span in spans if span.trace_id == trace_id] for name, spans in receiver.spans.items()}
    parts = ("job", "submit attempt", "attempt", "trial", "start workers", "stage", "search", "commit", "checkpoint")
    assert [name for name in (*parts, "export", "worker run") if not of_job.get(name)] == []
    services = {service for spans in receiver.spans.values() for service, span in spans if span.trace_id == trace_id}
    assert services == {"wiretune-api", "wiretune-driver", "wiretune-trial", "wiretune-worker"}
    # each leads to the one above it
    ids = {span.span_id: span.name for spans in of_job.values() for span in spans}
    above = {span.name: ids.get(span.parent_span_id) for spans in of_job.values() for span in spans}
    assert (above["attempt"], above["trial"], above["stage"]) == ("submit attempt", "attempt", "trial")
    assert (above["search"], above["commit"]) == ("stage", "stage")
    [*_, run] = of_job["worker run"]
    assert "wiretune.wire_seconds" in {each.key for each in run.attributes}


def test_a_job_on_s3_goes_on_when_its_service_comes_back_and_leaves_nothing_elsewhere(
    tmp_path: Path, s3: S3Server
) -> None:
    settings = Settings(state_dir=tmp_path / "state", port=0, storage_url=f"s3://{BUCKET}/wiretune")
    with served(settings) as server, Client(*server) as client:
        job_id = client.submit(JOB | {"budget": {"steps": 3000}, "checkpoint": {"every_seconds": 2}}).id
        assert wait_until(lambda: len(client.stages(job_id)) > 0, timeout_s=400, every_s=1.0)

    with served(settings) as server, Client(*server) as client:
        ended = client.wait(job_id, timeout_s=400)
        [trial] = client.trials(job_id)
        weights = io.BytesIO()
        client.save_weights(job_id, weights)

    assert ended.state is JobState.SUCCEEDED, ended.reason
    assert ended.attempt > 1
    assert trial.bill.steps + trial.bill.steps_search == 3000
    assert trial.weights_url.startswith(f"s3://{BUCKET}/wiretune/")
    assert len(load(weights.getvalue())) > 0
    assert not list((tmp_path / "state").rglob("*.safetensors"))


def test_a_job_goes_on_where_a_backup_of_its_running_service_was_restored(tmp_path: Path) -> None:
    here = Settings(state_dir=tmp_path / "here", port=0)
    there = Settings(state_dir=tmp_path / "there", port=0)
    endless = JOB | {"budget": {"steps": 1000}, "checkpoint": {"every_seconds": 2}}
    with served(here) as server, Client(*server) as client:
        job_id = client.submit(endless).id
        assert wait_until(lambda: len(client.stages(job_id)) > 0, timeout_s=400, every_s=1.0)
        backup.back_up(here, tmp_path / "backup")

    backup.restore(there, tmp_path / "backup")
    with served(there) as server, Client(*server) as client:
        ended = client.wait(job_id, timeout_s=400)
        [trial] = client.trials(job_id)

    assert ended.state is JobState.SUCCEEDED, ended.reason
    assert ended.attempt > 1
    assert trial.bill.steps + trial.bill.steps_search == 1000
    assert str(tmp_path / "there") in trial.weights_url
