"""Waiting for jobs: how often they are polled, one by one and several at once."""

import asyncio
from types import SimpleNamespace

import httpx2
import pytest

from api import waiting
from api.async_client import AsyncClient
from api.client import Client
from api.connection import request
from api.failures import UnknownJob
from api.waiting import Looks, all_of, in_pages
from service.control.store import Store
from service.job.spec import JobSpec
from service.job.states import JobState


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stands where `time` stands."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(waiting, "time", clock)
    return clock


def pause_after(looks: Looks, clock: SimpleNamespace, *, at: float, took_s: float) -> float:
    """Return the pause behind a look that began at some time, and took so long."""
    clock.now = at
    looks.begin()
    clock.now += took_s
    return looks.pause_s("job j was")


def test_pauses_grow_with_the_time_waited_and_with_what_a_look_takes(clock: SimpleNamespace) -> None:
    looks = Looks(None, None)

    quick = [pause_after(looks, clock, at=at, took_s=0.0) for at in (0.0, 20.0, 60.0, 3600.0)]
    slow = [pause_after(looks, clock, at=0.0, took_s=took_s) for took_s in (0.2, 1.0, 60.0)]

    assert quick == [0.5, 1.0, 3.0, 5.0]
    assert slow == [0.8, 4.0, 10.0]


def test_whoever_says_how_often_to_look_is_heard(clock: SimpleNamespace) -> None:
    assert pause_after(Looks(None, 0.1), clock, at=3600.0, took_s=9.0) == 0.1


def test_the_last_pause_ends_with_the_wait(clock: SimpleNamespace) -> None:
    looks = Looks(10.0, None)

    assert pause_after(looks, clock, at=9.0, took_s=0.75) == 0.25
    with pytest.raises(TimeoutError, match=r"job j was not over after 10\.0 s"):
        pause_after(looks, clock, at=11.0, took_s=0.0)


def test_all_jobs_are_waited_for_with_one_request_a_look(
    client: Client, store: Store, job: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, sent, send = [client.submit(job).id for _ in range(3)], list[list[str]](), client.send

    def cancel_one(call: object, **options: object) -> object:
        sent.append(list(call.params["id"]))  # type: ignore[attr-defined]
        answer = send(call, **options)  # type: ignore[arg-type]
        if left := [each for each in ids if not store.job(each).is_over]:
            store.cancel(left[0])
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(client, "send", cancel_one)
        found = client.wait_all(iter(ids), poll_s=0.0)

    assert [each.id for each in found] == ids and {each.state for each in found} == {JobState.CANCELLED}
    assert sent == [ids, ids, ids[1:], ids[2:]]


def test_a_request_for_many_jobs_has_a_line_that_proxies_take() -> None:
    ids = [f"job-{number:024x}" for number in range(1000)]

    pages = list(in_pages(ids))

    assert [each for page in pages for each in page] == ids
    with httpx2.Client(base_url="http://x") as http:
        lines = [request(http, all_of(page)).url.raw_path for page in pages]
    assert max(map(len, lines)) < 8000  # nginx takes 8 kB, with the method and the version


def test_of_jobs_that_are_not_over_in_time_one_is_named_and_so_is_one_that_is_not_there(
    client: Client, job: JobSpec
) -> None:
    made, other = client.submit(job), client.submit(job)
    client.cancel(other.id)

    with pytest.raises(TimeoutError, match=f"1 of 2 jobs, {made.id} among them, were not over after 0.05 s"):
        client.wait_all([made.id, other.id], timeout_s=0.05)
    with pytest.raises(UnknownJob, match="there is no job `job-none`"):
        client.wait_all([made.id, "job-none"])
    assert client.wait_all([]) == ()


def test_all_jobs_are_awaited(live_url: str, key: str, client: Client, job: JobSpec) -> None:
    ids = [client.submit(job).id for _ in range(2)]
    for each in ids:
        client.cancel(each)

    async def wait() -> list[str]:
        async with AsyncClient(live_url, key) as awaited:
            return [each.id for each in await awaited.wait_all(ids)]

    assert asyncio.run(wait()) == ids
