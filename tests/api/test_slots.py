"""A slow storage, Ray or database delays only the callers who need it, and costs no driver its lease."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from api.http.app import create_app
from api.http.slots import NUM_SLOTS
from service.control.access.rules import LOCAL
from service.control.ray_cluster.occupancy import Occupancy
from service.control.storage import Storage
from service.control.store import Store
from tests.api.conftest import Reporting, serving
from tests.support.fake_ray import FakeRay
from tests.support.patience import PATIENCE_S

NUM_ASKED = 60


class Silence:
    """Keeps whoever comes waiting until it is over, and counts them."""

    def __init__(self) -> None:
        self._over, self._waiting = threading.Event(), threading.Semaphore(0)

    def keep(self, answer: Any) -> Any:
        self._waiting.release()
        assert self._over.wait(PATIENCE_S)
        return answer

    def wait_for(self, num: int) -> None:
        assert all(self._waiting.acquire(timeout=PATIENCE_S) for _ in range(num))

    def end(self) -> None:
        self._over.set()


@pytest.fixture
def silence() -> Iterator[Silence]:
    silence = Silence()
    yield silence
    silence.end()


def renewed(url: str, store: Store, reporting: Reporting) -> int:
    headers = {"Authorization": f"Bearer {store.attempts.token(reporting.job_id, reporting.number)}"}
    path = f"/v1/attempts/{reporting.job_id}/{reporting.number}/lease"
    return httpx2.post(url + path, json={}, headers=headers, timeout=PATIENCE_S, trust_env=False).status_code


def test_a_silent_storage_keeps_no_driver_waiting(
    store: Store, reporting: Reporting, key: str, silence: Silence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Storage, "files", lambda *_: silence.keep({}))
    headers = {"Authorization": f"Bearer {key}"}

    with serving(create_app(store)) as url, ThreadPoolExecutor(NUM_ASKED) as pool:

        def ask(_: int) -> httpx2.Response:
            path = f"/v1/jobs/{reporting.job_id}/artifacts"
            return httpx2.get(url + path, headers=headers, timeout=PATIENCE_S, trust_env=False)

        answers = pool.map(ask, range(NUM_ASKED))
        silence.wait_for(NUM_SLOTS)
        lease = renewed(url, store, reporting)
        ready = httpx2.get(f"{url}/readyz", timeout=PATIENCE_S, trust_env=False).status_code
        silence.end()
        found = list(answers)

    assert (lease, ready) == (200, 200)
    assert {each.json()["type"] for each in found if each.status_code == 503} <= {"/problems/busy"}
    assert Counter(each.status_code for each in found).keys() <= {200, 503}


def test_who_finds_no_slot_in_time_is_told_to_come_back(
    store: Store, reporting: Reporting, key: str, silence: Silence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Storage, "files", lambda *_: silence.keep({}))
    path, headers = f"/v1/jobs/{reporting.job_id}/artifacts", {"Authorization": f"Bearer {key}"}

    with serving(create_app(store)) as url, ThreadPoolExecutor(NUM_SLOTS) as pool:

        def ask() -> httpx2.Response:
            return httpx2.get(url + path, headers=headers, timeout=PATIENCE_S, trust_env=False)

        let_in = [pool.submit(ask) for _ in range(NUM_SLOTS)]
        silence.wait_for(NUM_SLOTS)
        refused = ask()
        silence.end()
        statuses = [each.result().status_code for each in let_in]
        again = ask()

    assert (refused.status_code, refused.json()["type"]) == (503, "/problems/busy")
    assert refused.headers["retry-after"] == "2"
    assert statuses == [200] * NUM_SLOTS and again.status_code == 200


def test_drivers_have_threads_of_their_own(
    store: Store, reporting: Reporting, key: str, silence: Silence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests for trials wait for the database alone, and no slot bounds them."""
    monkeypatch.setattr(store, "trials", lambda _: silence.keep(()))
    headers = {"Authorization": f"Bearer {key}"}

    with serving(create_app(store)) as url, ThreadPoolExecutor(NUM_ASKED) as pool:

        def ask(_: int) -> int:
            path = f"/v1/jobs/{reporting.job_id}/trials"
            return httpx2.get(url + path, headers=headers, timeout=PATIENCE_S, trust_env=False).status_code

        answers = pool.map(ask, range(NUM_ASKED))
        silence.wait_for(40)
        lease = renewed(url, store, reporting)
        silence.end()
        list(answers)

    assert lease == 200


def test_who_looks_at_the_cluster_while_ray_is_silent_sees_the_last_answer(store: Store, silence: Silence) -> None:
    ray, clock = FakeRay(cpus=8), iter(range(0, 1000, 10)).__next__
    occupancy = Occupancy(store, lambda: ray, clock=clock)
    before = occupancy.view(by=LOCAL)
    ray.machines = lambda: silence.keep(())  # type: ignore[method-assign]

    with ThreadPoolExecutor(1) as pool:
        pool.submit(occupancy.view, by=LOCAL)
        silence.wait_for(1)
        seen = occupancy.view(by=LOCAL)
        silence.end()

    assert seen == before and seen.reachable
