"""A database that is full, read-only or restarted: 503 with a time to retry, and then normal service."""

import base64
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest
from sqlalchemy.exc import DataError, OperationalError, ProgrammingError, TimeoutError as NoFreeConnection
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from api.http.app import create_app
from service.control.access.rules import LOCAL
from service.control.database import session
from service.control.database.engine import NUM_READERS
from service.control.models import ApiKeyRow
from service.control.processes import wait_until
from service.control.store import Store
from service.errors import InvalidRequest, Unavailable
from service.settings import Settings
from service.wire.records import Control
from tests.store.conftest import Group, only
from tests.support.patience import PATIENCE_S
from tests.support.read_only import read_only
from tests.support.small_disk import SmallDisk, small_disk

JOB = {"workload": {"kind": "digits-mlp"}, "budget": {"steps": 1}}
LARGE = JOB | {"labels": {f"label-{number}": "x" * 100 for number in range(64)}}


@pytest.fixture
def api(store: Store) -> TestClient:
    key = store.add_key("test")
    return TestClient(create_app(store), headers={"Authorization": f"Bearer {key}", "Idempotency-Key": "k"})


def assert_refused(answer: Any, *, said: str) -> None:
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2"), answer.text
    assert answer.json()["type"] == "/problems/unavailable"
    assert said in answer.json()["detail"] and "INSERT INTO" not in answer.text


def test_a_read_only_database_refuses_with_503_shows_what_it_has_and_takes_the_same_job_later(store, spec, api):
    job, _ = store.add_job(spec)

    with read_only(store):
        refused, seen = api.post("/v1/jobs", json=JOB), api.get(f"/v1/jobs/{job.id}")

    assert_refused(refused, said="read")
    assert seen.status_code == 200
    assert api.post("/v1/jobs", json=JOB).status_code == 202
    assert len(api.get("/v1/jobs").json()["jobs"]) == 2


@pytest.fixture
def disk(tmp_path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", megabytes=8) as disk:
        yield disk


@pytest.fixture
def store_on_disk(disk, clock, put_sqlite) -> Iterator[Store]:
    settings = Settings(state_dir=disk.path / "state", database_url="")
    put_sqlite(settings)
    store = Store.open(settings, clock=clock)
    yield store
    store.close()


def test_a_full_disk_refuses_with_503_shows_what_it_has_and_takes_the_same_job_later(disk, store_on_disk):
    key = store_on_disk.add_key("test")
    api = TestClient(create_app(store_on_disk), headers={"Authorization": f"Bearer {key}"})
    first = api.post("/v1/jobs", json=JOB).json()["id"]

    disk.fill()
    refused = [api.post("/v1/jobs", json=LARGE, headers={"Idempotency-Key": "k"}) for _ in range(3)]
    seen = api.get(f"/v1/jobs/{first}")
    disk.free()
    taken = api.post("/v1/jobs", json=LARGE, headers={"Idempotency-Key": "k"})

    for answer in refused:
        assert_refused(answer, said="disk is full")
    assert (seen.status_code, taken.status_code) == (200, 202)
    assert len(api.get("/v1/jobs").json()["jobs"]) == 2


def test_a_full_disk_has_a_reserve_on_which_the_service_starts_and_again_once_there_was_room(
    tmp_path, put_sqlite, spec, clock
):
    with small_disk(tmp_path / "disk", megabytes=32) as disk:
        settings = Settings(state_dir=disk.path / "state", database_url="")
        put_sqlite(settings)
        disk.fill()
        with pytest.raises(Unavailable):
            Store.open(settings, clock=clock)  # there is none yet
        disk.free()
        with closing(Store.open(settings, clock=clock)) as store:
            store.expiry.remove_expired(clock.now)

        for _ in range(2):
            disk.fill()
            with closing(Store.open(settings, clock=clock)) as store:
                store.add_job(spec)
                disk.free()
                store.expiry.remove_expired(clock.now)


def add_name(name: str) -> Callable[[Session], None]:
    words = dict.fromkeys(("id", "digest", "owner", "role", "project", "created_by"), name[:8])
    return lambda session: session.add(ApiKeyRow(**words, name=name, created_at=0.0))


@pytest.mark.parametrize("mistakes", [0, 1])
@pytest.mark.parametrize("size", [16_000_000, 1_500_000], ids=["a-statement", "at-commit"])
def test_of_a_group_that_fills_the_disk_what_is_acknowledged_is_stored_and_told_and_no_more(
    disk, store_on_disk, spec, pool, size, mistakes
):
    store_on_disk._db.write(add_name("taken"))
    disk.fill(leave=1_000_000)
    group = Group(store_on_disk, pool)
    submitted = [group.call(lambda: store_on_disk.add_job(spec)) for _ in range(2)]
    mistaken = [group.add(add_name("taken")) for _ in range(mistakes)]
    large = group.add(add_name("x" * size))
    submitted += [group.call(lambda: store_on_disk.add_job(spec)) for _ in range(2)]

    group.release()

    with pytest.raises(Unavailable, match="disk is full"):
        large.result(PATIENCE_S)
    for refused in mistaken:
        with pytest.raises(Unavailable, match="UNIQUE"):
            refused.result(PATIENCE_S)
    acknowledged = {future.result(PATIENCE_S)[0].id for future in submitted}
    assert {job.job_id for job in store_on_disk.work.backlog().waiting} == acknowledged
    assert {event.job_id for event in store_on_disk.events(0).events} == acknowledged


@only("postgresql")
def test_users_who_insist_while_the_server_is_restarted_get_every_job_once(store, spec, own_postgres, pool):
    def insist(number: int) -> str:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                return store.add_job(spec, idempotency_key=f"k{number}")[0].id
            except Unavailable as refusal:
                assert "try again" in str(refusal)
        pytest.fail("the database did not come back")

    acknowledged = [pool.submit(insist, number) for number in range(100)]
    for _ in range(2):
        with own_postgres.crashed():
            pass
        acknowledged += [pool.submit(insist, number) for number in range(100)]
    ids = [future.result(60) for future in acknowledged]

    assert ids[:100] == ids[100:200] == ids[200:]
    assert {job.job_id for job in store.work.backlog().waiting} == set(ids)


def test_the_store_knows_when_the_database_failed_last_and_no_users_mistake_counts(store, spec, clock):
    assert store.failed_at == -math.inf
    with ThreadPoolExecutor(2) as pool:  # one key from two jobs: refused, and the database is fine
        other = spec.model_copy(update={"name": "another"})
        for future in [pool.submit(store.add_job, each, idempotency_key="k") for each in (spec, other)]:
            future.exception()
    assert store.failed_at == -math.inf

    with read_only(store), pytest.raises(Unavailable):
        store.add_job(spec)

    assert clock.now - 1 < store.failed_at <= clock.now


def test_the_database_fails_for_as_long_as_a_write_takes_too_long_for_leases(store, spec, pool, clock, monkeypatch):
    monkeypatch.setattr(store._db._writer, "_slow_s", 0.01)
    group = Group(store, pool)
    job = group.call(lambda: store.add_job(spec))
    assert wait_until(lambda: store.failed_at > -math.inf, timeout_s=PATIENCE_S, every_s=0.001)
    clock.now += 60

    while_it_takes = store.failed_at
    group.release()
    job.result(PATIENCE_S)

    assert clock.now - 1 < while_it_takes <= store.failed_at <= clock.now


def test_readers_that_take_every_place_hold_up_no_write_and_a_further_one_is_told_why(store, driver, api, monkeypatch):
    monkeypatch.setattr(session, "_FOR_A_PLACE_S", 0.01)
    with ExitStack() as readers:
        for _ in range(NUM_READERS):
            readers.enter_context(store._db.reading()).connection()

        assert store.attempts.renew(driver.job_id, 1).control is Control.RUN
        assert_refused(api.get("/readyz"), said="long reads keep the database busy")
        assert store.failed_at == -math.inf  # a driver may still renew its lease

    assert api.get("/readyz").status_code == 200


def test_a_failure_is_never_of_a_moment_to_come_though_the_clock_was_set_back(store, spec, clock):
    with read_only(store), pytest.raises(Unavailable):
        store.add_job(spec)
    clock.now -= 3600
    first = store.failed_at
    clock.now += 60

    assert first <= clock.now - 60 and store.failed_at == first


def test_a_failure_that_comes_while_the_last_one_is_asked_for_is_not_forgotten(store, monkeypatch):
    now = store._db.now
    failing = threading.Thread(target=store._db._note_failure)

    def fail_meanwhile():
        monkeypatch.setattr(store._db, "now", now)
        failing.start()
        failing.join(0.1)  # unless it has to wait its turn
        return now()

    monkeypatch.setattr(store._db, "now", fail_meanwhile)
    _ = store.failed_at
    failing.join(PATIENCE_S)

    assert store.failed_at > 0


def refused(sqlstate):
    error = Exception("refused")
    error.sqlstate = sqlstate
    return error


def test_a_request_that_the_database_refuses_is_no_outage(store, clock):
    for kind in (DataError, ProgrammingError):
        with pytest.raises(Unavailable), store._db.reading():
            raise kind("select", {}, Exception("refused"))
    with pytest.raises(Unavailable), store._db.reading():  # an index row that is too large
        raise OperationalError("insert", {}, refused("54000"))
    assert store.failed_at == -math.inf

    for outage in (OperationalError("select", {}, Exception("away")), NoFreeConnection("all are taken")):
        store._db._failed_at = -math.inf
        with pytest.raises(Unavailable), store._db.reading():
            raise outage

        assert clock.now - 1 < store.failed_at <= clock.now


def test_a_store_whose_writer_does_not_stop_gives_the_database_back(settings, clock, monkeypatch):
    store = Store.open(settings, clock=clock)
    close = store._db._writer.close

    def stop_late() -> None:
        close()
        raise Unavailable("the writer did not stop")

    monkeypatch.setattr(store._db._writer, "close", stop_late)

    with pytest.raises(Unavailable, match="did not stop"):
        store.close()

    Store.open(settings, clock=clock).close()


@pytest.mark.parametrize("text", ['[0.0, "a\\u0000", "b"]', '[0.0, "a", "\\u0000"]'])
def test_a_cursor_of_code_with_a_nul_is_refused_as_what_it_is(store, text):
    cursor = base64.urlsafe_b64encode(text.encode()).decode()

    with pytest.raises(InvalidRequest, match="cursor"):
        store.code.list(by=LOCAL, cursor=cursor)


def test_a_storage_out_of_reach_is_503_for_what_is_on_it_alone(tmp_path, clock, spec, put_sqlite):
    settings = Settings(state_dir=tmp_path, database_url="", storage_url="file:///dev/null/results")
    put_sqlite(settings)
    with closing(Store.open(settings, clock=clock)) as store:
        job_id = store.add_job(spec)[0].id
        store.attempts.begin(job_id)
        api = TestClient(create_app(store), headers={"Authorization": f"Bearer {store.add_key('test')}"})

        assert_refused(api.get(f"/v1/jobs/{job_id}/logs"), said="WIRETUNE_STORAGE_URL")
        assert api.get(f"/v1/jobs/{job_id}").status_code == 200
