"""A real store on a temporary SQLite file, the application over it, and a job with two arms that has reported."""

import asyncio
import hashlib
import math
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import uvicorn.server
from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.client import Client
from api.http import parameters
from api.http.app import create_app
from api.http.connections import Deadlines
from api.http.examples import EXAMPLE_JOB
from api.http.server import _Server, bind, server_config
from service.control.processes import wait_until
from service.control.storage import WEIGHTS
from service.control.store import Store
from service.job.spec import JobSpec
from service.settings import Settings
from service.wire.records import (
    AnyRecord,
    AttemptFinished,
    Batch,
    Bill,
    MetricPoints,
    ProbeDone,
    ScheduleEntry,
    StageClosed,
    StageDecided,
    TrialFinished,
    TrialStarted,
)
from tests.api.dashboard.browser import HOW_TO_GET_ONE, Tab, find_chromium, opened
from tests.support.decisions import decision
from tests.support.patience import PATIENCE_S


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("WIRETUNE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("WIRETUNE_URL", raising=False)
    monkeypatch.delenv("WIRETUNE_API_KEY", raising=False)
    return Settings()


@pytest.fixture
def store(settings: Settings, put_sqlite: Callable[[Settings], None]) -> Iterator[Store]:
    put_sqlite(settings)
    opened = Store.open(settings)
    yield opened
    opened.close()


@pytest.fixture
def key(store: Store) -> str:
    return store.add_key("test")


@pytest.fixture
def anonymous(store: Store) -> Iterator[TestClient]:
    with TestClient(create_app(store), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def http(anonymous: TestClient, key: str) -> TestClient:
    anonymous.headers["Authorization"] = f"Bearer {key}"
    return anonymous


@pytest.fixture
def job() -> JobSpec:
    return JobSpec.model_validate(EXAMPLE_JOB)


@pytest.fixture
def live_url(store: Store) -> Iterator[str]:
    """The application over a real socket."""
    with serving(create_app(store)) as url:
        yield url


#: Uvicorn looks every 0.1 s whether to end, and waits as long when it does: hundreds of tests end a server.
_HASTY = SimpleNamespace(**vars(asyncio) | {"sleep": lambda seconds: asyncio.sleep(min(seconds, 0.01))})


@contextmanager
def serving(app: FastAPI, deadlines: Deadlines | None = None, *, port: int = 0) -> Iterator[str]:
    """Serve `app` as the service does; little of an answer fits between it and a client that does not read."""
    with bind("127.0.0.1", port) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32_768)
        server = _Server(server_config(app, deadlines or Deadlines()))
        server.broadcaster = app.state.services.broadcaster
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        with patch.object(uvicorn.server, "asyncio", _HASTY):
            thread.start()
            try:
                assert wait_until(lambda: server.started, timeout_s=PATIENCE_S, every_s=0.01)
                yield f"http://127.0.0.1:{bound.getsockname()[1]}"
            finally:
                server.should_exit = True
                thread.join(10)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that a browser opens a page for."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def browser() -> Iterator[Tab]:
    pytest.importorskip("playwright", reason="needs Playwright (pip install 'wiretune[browser]')")
    program = find_chromium()
    if program is None:
        pytest.skip(HOW_TO_GET_ONE)
    with opened(program) as tab:
        yield tab


@pytest.fixture
def client(live_url: str, key: str) -> Iterator[Client]:
    with Client(live_url, key) as connected:
        yield connected


@pytest.fixture
def at(live_url: str, key: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of the service that commands talk to."""
    monkeypatch.setenv("WIRETUNE_URL", live_url)
    monkeypatch.setenv("WIRETUNE_API_KEY", key)
    return live_url


class Reporting:
    """Stands where a driver stands: begins an attempt and posts what a run would, a batch per call.

    Without a `job_id` the job is made.
    """

    def __init__(self, store: Store, spec: JobSpec, job_id: str | None = None) -> None:
        self.store, self.spec = store, spec
        self.job_id = job_id or store.add_job(spec)[0].id
        self.number = store.attempts.begin(self.job_id).attempt
        self._sequence = 0

    def post(self, *records: AnyRecord) -> None:
        self._sequence += 1
        batch = Batch(stream="driver", sequence=self._sequence, records=records)
        self.store.attempts.ingest(self.job_id, self.number, batch)

    def trial(self, arm: str) -> str:
        return f"{self.job_id}.{arm}.0"

    def start(self, arm: str) -> None:
        started = TrialStarted(
            trial_id=self.trial(arm), arm=arm, seed=0, backend="gloo", device="cpu", metrics={"accuracy": "max"}
        )
        self.post(started)

    def stage(
        self,
        arm: str,
        stage: int,
        *,
        rate: float,
        density: float | None,
        reason: str = "the search's minimum, 98% sure to be better",
    ) -> None:
        """A stage of 100 steps: two probes and a commit."""
        trial_id, first = self.trial(arm), 100 * stage
        probes = [
            ProbeDone(
                trial_id=trial_id, stage=stage, probe_id=f"{stage}.{index}", learning_rate=rate * factor,
                level=density, origin="wide", num_steps=20, seconds=0.4, bytes_sent=40_000, density=density,
                loss=loss, forecast=None if loss is None else loss / 2, forecast_std=0.02,
                status="ok" if loss else "diverged",
            )
            for index, (factor, loss) in enumerate([(1.0, 0.9), (8.0, None)])
        ]  # fmt: skip
        decided = StageDecided(
            trial_id=trial_id, stage=stage, first_step=first, learning_rate=rate, level=density,
            reason=reason, switched=True, probability=0.98,
            forecast=0.45, forecast_std=0.02, search_seconds=0.8, search_steps=40, search_bytes=80_000,
            decision=decision(stage, learning_rate=rate),
        )  # fmt: skip
        self.post(*(probes if density else []), decided)
        self.post(*self._points(trial_id, first, density))
        spent = stage + 1
        bill = Bill(bytes_sent=400_000 * spent, seconds_training=5.0 * spent, steps=100 * spent)
        closed = StageClosed(
            trial_id=trial_id, stage=stage, step=first + 100, num_steps=100, density=density,
            threshold=density and 0.01, bill=bill, resume={},
        )  # fmt: skip
        self.post(closed)

    def _points(self, trial_id: str, first: int, density: float | None) -> list[MetricPoints]:
        pace = 0.05 if density else 0.1  # dense gradients take longer
        steps = tuple(range(first, first + 100))
        seconds = tuple(pace * step for step in steps)
        loss = tuple(2.3 * math.exp(-step / 90) + 0.05 + 0.02 * math.sin(step) for step in steps)
        series = {"loss": loss, "validation_loss": tuple(value + 0.04 for value in loss)}
        return [
            MetricPoints(
                trial_id=trial_id, name=name, steps=steps[::stride], seconds=seconds[::stride],
                values=values[::stride],
            )
            for (name, values), stride in zip(series.items(), (1, 20), strict=True)
        ]  # fmt: skip

    def finish_trial(
        self,
        arm: str,
        *,
        rates: list[float],
        density: float | None,
        loss: float,
        exported_step: int | None = None,
        timed: tuple[int, float] = (0, 0.0),
        stopped: bool = False,
    ) -> None:
        """Post a trial's end; `timed` are steps, and the seconds that they computed."""
        entries = tuple(
            ScheduleEntry(
                step=100 * index, num_steps=100, learning_rate=rate, level=density, density=density,
                threshold=density and 0.01, reason="the search's minimum",
            )
            for index, rate in enumerate(rates)
        )  # fmt: skip
        sent = 900_000 if density else 30_000_000
        bill = Bill(
            bytes_sent=sent, bytes_search=160_000 if density else 0, bytes_dense=30_000_000, seconds_search=1.6,
            seconds_training=20.0, steps=100 * len(rates), steps_search=80, steps_timed=timed[0],
            seconds_compute=timed[1],
        )  # fmt: skip
        self.post(
            TrialFinished(
                trial_id=self.trial(arm), outcome="completed", validation_loss=loss,
                validation_metrics={"accuracy": 0.97}, test={"loss": loss + 0.01}, schedule=entries, bill=bill,
                stopped=stopped, weights_url=self.save(arm),
                weights_sha256=hashlib.sha256(self.weights(arm)).hexdigest(),
                exported_step=exported_step,
                last_weights_url=exported_step and self.save(arm, "last/"),
            )
        )  # fmt: skip

    def save(self, arm: str, beside: str = "") -> str:
        """Leave on storage what a trial leaves: its weights, and a checkpoint beside them."""
        storage = self.store.storage
        folder = f"{storage.attempt_url(self.job_id, self.number)}/{self.trial(arm)}"
        storage.write(f"{folder}/000000-step-0/shared.safetensors", bytes(3000))
        storage.write(f"{folder}/{beside}{WEIGHTS}", beside.encode() + self.weights(arm))
        return f"{folder}/{beside}{WEIGHTS}"

    def weights(self, arm: str) -> bytes:
        return f"weights of {arm}".encode()

    def finish(self, outcome: str = "succeeded", reason: str = "") -> None:
        self.post(AttemptFinished.model_validate({"outcome": outcome, "reason": reason}))

    def run_to_the_end(self) -> None:
        for arm, density, loss in (("tuned", 0.01, 0.31), ("dense", None, 0.42)):
            self.start(arm)
            rates = [2.0, 1.0] if density else [0.1, 0.1]
            for stage, rate in enumerate(rates):
                self.stage(arm, stage, rate=rate, density=density)
            self.finish_trial(arm, rates=rates, density=density, loss=loss)
        self.finish()


@pytest.fixture
def like_0_1_0(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the service refuse what release 0.1.0 does not know: a choice of points, and the list of series."""
    known, new = parameters._known, ("name", "first_step")
    monkeypatch.setattr(parameters, "_known", lambda route: {each: () for each in known(route) if each not in new})
    monkeypatch.setattr(client, "recorded", lambda job_id: client.metrics(job_id, "no_such_series"))  # a 404


@pytest.fixture
def reporting(store: Store, job: JobSpec) -> Reporting:
    return Reporting(store, job)
