"""Continuing a job with another number of workers, by HTTP and from a terminal."""

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from api.cli import main
from api.client import Client
from api.failures import ApiError
from api.http.app import create_app
from service.control.store import Store
from service.job.problems import Problem
from service.job.spec import JobSpec


def test_a_paused_job_is_resumed_with_other_workers(client: Client, job: JobSpec, live_url: str, key: str) -> None:
    job_id = client.submit(job).id
    client.pause(job_id)

    done = CliRunner().invoke(main.app, ["resume", job_id, "--workers", "4", "--url", live_url, "--key", key])

    assert "with 4 workers instead of 2" in done.output
    assert client.job(job_id).spec.workers.count == 4


def test_a_number_that_the_job_cannot_have_is_refused_with_its_pointer(client: Client, job: JobSpec) -> None:
    job_id = client.submit(job).id
    client.pause(job_id)

    with pytest.raises(ApiError) as refusal:
        client.resume(job_id, workers=1000)

    assert refusal.value.status == 422 and "/workers/count" in str(refusal.value)


def test_workers_that_the_cluster_cannot_hold_are_refused(store: Store, key: str, job: JobSpec) -> None:
    def conflicts(spec: JobSpec) -> list[Problem]:
        return [Problem(pointer="/workers/count", message="too many")] if spec.workers.count > 2 else []

    job_id = store.add_job(job)[0].id
    store.cancel(job_id)
    with TestClient(create_app(store, conflicts=conflicts), headers={"Authorization": f"Bearer {key}"}) as http:
        refused = http.post(f"/v1/jobs/{job_id}:retry?workers=3")
        allowed = http.post(f"/v1/jobs/{job_id}:retry?workers=2")

    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (409, "/workers/count")
    assert (allowed.status_code, allowed.json()["reason"]) == (202, "tried again by test")
