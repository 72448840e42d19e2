"""A driver that is frozen and wakes up too late, an API that is away for long, a full storage: none costs a job.

Each service here is the test's own, with an embedded Ray.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from faults.live import LiveService, command_line, is_driver, kill

from api.client import Client
from api.http.app import create_app
from api.http.server import bind, ensure_key
from api.jobs import Job
from service.control import processes
from service.control.ray_cluster.ray_jobs import RayJobs
from service.control.reconciling.assembly import assemble
from service.control.store import Store
from service.errors import Unavailable
from service.job.states import JobState
from service.settings import Settings
from service.wire.jobs import JobView
from tests.support.small_disk import SmallDisk, small_disk

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(900)]

LEASE_S = 4.0


def job(*, steps: int, latency_ms: float = 10) -> dict[str, Any]:
    """Return a job whose link, not the machine, sets its pace."""
    return {
        "workload": {"kind": "digits-mlp"},
        "link": {"mode": "emulate", "mbps": 100, "latency_ms": latency_ms},
        "controller": {"kind": "fixed"},
        "checkpoint": {"every_seconds": 2},
        "budget": {"steps": steps},
    }


class Listening:
    """A service in this process, and every answer that it gave to an attempt: path and status, in order."""

    def __init__(self, folder: Path) -> None:
        self.answers: list[tuple[str, int]] = []
        self.settings = Settings(
            state_dir=folder, num_cpus=8, num_gpus=0, lease_s=LEASE_S, renew_s=1.0, database_url="", ray_address=""
        )
        self._store = Store.open(self.settings)
        self._key = ensure_key(self._store, folder)
        self._socket = bind("127.0.0.1", 0)
        bound = self._socket.__enter__()
        self.url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        self._assembly = assemble(self._store, self.settings, api_url=self.url)
        config = uvicorn.Config(self._noting(create_app(self._store)), log_level="warning", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [bound]}, daemon=True)
        self._thread.start()
        self._assembly.start()

    def client(self) -> Client:
        return Client(self.url, self._key)

    def close(self) -> None:
        self._assembly.stop()
        self._server.should_exit = True
        self._thread.join(30)
        self._socket.__exit__(None, None, None)
        self._store.close()

    def _noting(self, app: Any) -> Any:
        async def noting(scope: Any, receive: Any, send: Any) -> None:
            async def note(message: Any) -> None:
                if message["type"] == "http.response.start" and scope["path"].startswith("/v1/attempts/"):
                    self.answers.append((scope["path"], message["status"]))
                await send(message)

            await app(scope, receive, note)

        return noting


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Listening]:
    service = Listening(tmp_path)
    yield service
    service.close()


@pytest.fixture
def first_attempts_cannot_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a node that hangs, or is cut off from Ray's head."""
    stop = RayJobs.stop

    def refuse(self: RayJobs, submission_id: str) -> None:
        if "-a1-" in submission_id:
            raise Unavailable("the node does not answer")
        stop(self, submission_id)

    monkeypatch.setattr(RayJobs, "stop", refuse)


@pytest.mark.usefixtures("first_attempts_cannot_be_stopped")
def test_a_frozen_driver_that_wakes_after_three_leases_writes_nothing_and_ends_by_itself(
    listening: Listening, eventually: Any
) -> None:
    with listening.client() as client:
        job_id = client.submit(job(steps=600)).id
        eventually("committed steps", lambda: client.trials(job_id)[0].step >= 50, within_s=120)
        frozen = [pid for pid in processes.descendants(os.getpid()) if _is_of_the_attempt(pid)]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        frozen_at = time.monotonic()
        eventually("the successor trains", lambda: _trains(client, job_id, attempt=2), within_s=120)
        eventually("three leases", lambda: time.monotonic() - frozen_at > 3 * LEASE_S, within_s=3 * LEASE_S)

        num_answers = len(listening.answers)
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
        eventually("both have ended", lambda: not any(command_line(pid) for pid in frozen), within_s=60)
        view = client.wait(job_id, timeout_s=120)
        (losses,) = client.metrics(job_id, "loss")

    late = [status for path, status in listening.answers[num_answers:] if f"{job_id}/1" in path]
    assert len(frozen) == 2 and late and set(late) == {409}
    assert (view.state, view.attempt) == (JobState.SUCCEEDED, 2)
    assert losses.steps == tuple(range(600))


def _is_of_the_attempt(pid: int) -> bool:
    """Whether a process writes to the API: the driver does, and its trial."""
    line = command_line(pid)
    return is_driver(line) or line.startswith(b"ray::ImplicitFunc")


def _trains(client: Client, job_id: str, *, attempt: int) -> bool:
    view = client.job(job_id).view
    return view.attempt == attempt and view.state is JobState.RUNNING


@pytest.mark.parametrize(("away_s", "lease_s"), [(12.0, 2.0), (300.0, 15.0)])
def test_an_api_that_is_away_for_long_restarts_no_job_and_loses_nothing(
    tmp_path: Path, eventually: Any, away_s: float, lease_s: float
) -> None:
    service = LiveService(tmp_path, num_cpus=6, lease_s=lease_s, renew_s=lease_s / 3, embedded_idle_s=away_s / 3)
    steps = 500 + int(4 * away_s)  # some 4 a second, after starts that are some way apart
    try:
        with service.client() as client:
            jobs = [client.submit(job(steps=steps, latency_ms=100)).id for _ in range(3)]
            running = lambda: all(_trains(client, job_id, attempt=1) for job_id in jobs)  # noqa: E731
            eventually("three jobs run", running, within_s=300)

            kill(service.candidates("api")[0])
            time.sleep(away_s)  # what is tested
            service.restart_api()
            views = [client.wait(job_id, timeout_s=400) for job_id in jobs]
            series = [client.metrics(job_id, "loss", max_points=5000)[0].steps for job_id in jobs]
    finally:
        service.stop()

    assert [(view.state, view.attempt) for view in views] == [(JobState.SUCCEEDED, 1)] * 3
    assert series == [tuple(range(steps))] * 3


def test_a_job_whose_storage_is_full_waits_and_says_so_and_goes_on_by_itself_when_there_is_room(
    tmp_path: Path, eventually: Any
) -> None:
    with small_disk(tmp_path / "disk", megabytes=48) as disk:
        service = LiveService(tmp_path / "state", num_cpus=2, storage_url=f"file://{disk.path}")
        try:
            with service.client() as client:
                job_id = client.submit(job(steps=1000)).id
                eventually("committed steps", lambda: client.trials(job_id)[0].step >= 50, within_s=120)
                eventually("it waits", lambda: _waits_on(disk, client.job(job_id)), within_s=120)
                waiting = client.job(job_id).view
                eventually("no attempt is spent", lambda: _is_held(client.job(job_id).view, waiting), within_s=30)
                disk.free()
                view = client.wait(job_id, timeout_s=200)
                (losses,) = client.metrics(job_id, "loss")
        finally:
            service.stop()

    assert (view.state, view.attempt) == (JobState.SUCCEEDED, 2), view.reason
    assert losses.steps == tuple(range(1000))


def _waits_on(full: SmallDisk, job: Job) -> bool:
    """Whether the job waits for room on a disk that is filled again: half a checkpoint, thrown away, frees some."""
    full.fill()
    return "No space left" in job.reason


def _is_held(now: JobView, before: JobView) -> bool:
    """Whether the job has been queued for longer than its back-off, in its old attempt."""
    assert (now.state, now.attempt) == (JobState.QUEUED, before.attempt)
    return "WIRETUNE_STORAGE_URL" in now.reason
