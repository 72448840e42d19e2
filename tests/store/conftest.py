"""A store on a fresh database of either kind, a clock that the test turns, and jobs in every state.

Every test here runs on SQLite and on PostgreSQL; what is about one of them alone says so with `only`.
"""

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from service.control.processes import wait_until
from service.control.store import Store
from service.job.spec import JobSpec
from service.job.states import JobState
from service.settings import Settings
from service.wire.records import AttemptFinished, Batch, Bill, StageClosed, StageDecided, TrialStarted
from tests.support.decisions import decision
from tests.support.patience import PATIENCE_S


class Clock:
    """Seconds since the epoch, turned by hand; every look takes a millisecond."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def only(kind: str) -> pytest.MarkDecorator:
    """Run a test on `sqlite` or on `postgresql` alone."""
    return pytest.mark.parametrize("database_url", [kind], indirect=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The empty one is SQLite in the state dir."""
    url: str = "" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def settings(tmp_path: Path, database_url: str, put_sqlite: Callable[[Settings], None]) -> Settings:
    settings = Settings(state_dir=tmp_path / "state", database_url=database_url, max_attempts=2)
    if not database_url:
        put_sqlite(settings)
    return settings


@pytest.fixture
def store(settings: Settings, clock: Clock) -> Iterator[Store]:
    store = Store.open(settings, clock=clock)
    yield store
    store.close()


@pytest.fixture
def replicas(settings: Settings, store: Store, clock: Clock) -> Iterator[tuple[Store, Store]]:
    """Two replicas over one PostgreSQL; the first is `store`."""
    other = Store.open(of_a_replica(settings), clock=clock)
    yield store, other
    other.close()


def of_a_replica(settings: Settings, **changes: Any) -> Settings:
    """Return the settings of another replica: a state dir of its own, with the secret and the storage of `settings`."""
    folder = settings.state_dir.with_name("replica")
    folder.mkdir()
    shutil.copy(settings.state_dir / "secret", folder)
    return settings.model_copy(update={"state_dir": folder, "storage_url": settings.resolved_storage_url} | changes)


@pytest.fixture
def make_spec() -> Callable[..., JobSpec]:
    def make(**changes: Any) -> JobSpec:
        return JobSpec.model_validate({"workload": {"kind": "digits-mlp"}, "budget": {"steps": 100}} | changes)

    return make


@pytest.fixture
def spec(make_spec: Callable[..., JobSpec]) -> JobSpec:
    return make_spec()


class Driver:
    """Reports as one attempt of a job does: numbered batches per stream."""

    def __init__(self, store: Store, job_id: str, number: int) -> None:
        self.store, self.job_id, self.number = store, job_id, number
        self.trial_id = store.trials(job_id)[0].trial_id
        self._sequences: dict[str, int] = {}

    def send(self, *records: Any, stream: str = "driver") -> Any:
        self._sequences[stream] = self._sequences.get(stream, 0) + 1
        batch = Batch(stream=stream, sequence=self._sequences[stream], records=records)
        return self.store.attempts.ingest(self.job_id, self.number, batch)

    def start(self) -> None:
        self.send(
            TrialStarted(
                trial_id=self.trial_id, arm="tuned", seed=0, backend="gloo", device="cpu", metrics={"accuracy": "max"}
            )
        )

    def decide(self, stage: int, *, first_step: int, **values: Any) -> None:
        fields: dict[str, Any] = {
            "learning_rate": 0.1,
            "level": None,
            "reason": "the best of three",
            "switched": False,
            "probability": None,
            "forecast": None,
            "forecast_std": None,
            "search_seconds": 1.0,
            "search_steps": 10,
            "search_bytes": 1000,
            "decision": decision(stage),
        }
        record = StageDecided(trial_id=self.trial_id, stage=stage, first_step=first_step, **(fields | values))
        self.send(record, stream=self.trial_id)

    def close(self, stage: int, *, step: int, num_steps: int, bill: Bill, resume: dict[str, Any]) -> None:
        closed = StageClosed(
            trial_id=self.trial_id,
            stage=stage,
            step=step,
            num_steps=num_steps,
            density=None,
            threshold=None,
            bill=bill,
            resume=resume,
        )
        self.send(closed, stream=self.trial_id)


@pytest.fixture
def begin(store: Store) -> Callable[[str], Driver]:
    def begin(job_id: str) -> Driver:
        return Driver(store, job_id, store.attempts.begin(job_id).attempt)

    return begin


@pytest.fixture
def driver(store: Store, spec: JobSpec, begin: Callable[[str], Driver]) -> Driver:
    """The driver of a running job."""
    driver = begin(store.add_job(spec)[0].id)
    driver.start()
    return driver


#: How a user brings a running job to a state that ends by itself.
_ASKS = {JobState.PAUSING: Store.pause, JobState.STOPPING: Store.stop, JobState.CANCELLING: Store.cancel}


@pytest.fixture
def job_in(store: Store, spec: JobSpec, begin: Callable[[str], Driver]) -> Callable[[JobState], str]:
    """Return the id of a job brought to a state by the store's own verbs."""

    def job_in(state: JobState) -> str:
        job_id = store.add_job(spec)[0].id
        if state is JobState.QUEUED:
            return job_id
        if state is JobState.CANCELLED:
            return store.cancel(job_id).id
        if state is JobState.PAUSED:
            return store.pause(job_id).id
        driver = begin(job_id)
        if state is JobState.STARTING:
            return job_id
        driver.start()
        if state is JobState.SUCCEEDED:
            driver.send(AttemptFinished(outcome="succeeded"))
        elif state in _ASKS:
            _ASKS[state](store, job_id)
        elif state is JobState.FAILED:
            store.attempts.lose(job_id, 1, reason="lost")
            begin(job_id)
            store.attempts.lose(job_id, 2, reason="lost")
        return job_id

    return job_in


class Group:
    """Writes of one replica that wait until `release`, so that one transaction takes them all, in their order."""

    def __init__(self, store: Store, pool: ThreadPoolExecutor) -> None:
        self._db, self._pool = store._db, pool
        self._released, entered = threading.Event(), threading.Event()
        pool.submit(self._db.write, lambda _: entered.set() or self._released.wait(PATIENCE_S))
        assert entered.wait(PATIENCE_S)

    def add(self, function: Callable[[Session], object]) -> "Future[object]":
        return self.call(lambda: self._db.write(function))

    def call(self, call: Callable[[], object]) -> "Future[object]":
        """Have the write of a call of the store's own wait with the others."""
        num_waiting = self._db.num_waiting
        future = self._pool.submit(call)
        assert wait_until(lambda: self._db.num_waiting != num_waiting, timeout_s=PATIENCE_S, every_s=0.001)
        return future

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool
