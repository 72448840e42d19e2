"""Retries never do work twice, and happen only where they may help."""

import asyncio
import io
import os
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from api import calls
from api.async_client import AsyncClient
from api.calls import Call
from api.client import Client
from api.downloads import CheckedFile
from api.failures import ApiError, DamagedDownload, Unreachable
from api.retries import Patience, Restarts, StreamFailures, may_repeat
from service.control.store import Store
from service.job.spec import JobSpec
from service.job.states import JobState
from service.wire.events import Event, EventKind
from tests.api.conftest import Reporting

LOST, CUT, ELSEWHERE = "its answer is lost", "half of its answer is lost", "another part is answered"


class Road(ThreadingHTTPServer):
    """Passes requests on to a service; each of its next `faults` happens to one of them."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), Passing)
        self.target, self.url = target, f"http://127.0.0.1:{self.server_port}"
        self.faults: list[str | int] = []
        self.passes_on: tuple[str, ...] = ("Content-Type",)  # besides the length; of the headers of answers
        self.seen: list[str] = []
        self.ranges: list[str] = []


class Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Road

    def do_GET(self) -> None:
        self.server.seen.append(f"{self.command} {self.path}")
        self.server.ranges.append(self.headers.get("Range", ""))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.server.faults.pop(0) if self.server.faults else None
        if isinstance(fault, int):
            self._answer(fault, b"busy", {"Retry-After": "0"})
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        if fault is ELSEWHERE:
            headers["Range"] = "bytes=2-"
        answer = httpx2.request(self.command, self.server.target + self.path, content=body, headers=headers)
        if fault is LOST:
            self.close_connection = True
            return
        length = len(answer.content)
        if fault is CUT:
            self.close_connection = True
            answer = httpx2.Response(answer.status_code, content=answer.content[: length // 2], headers=answer.headers)
        told = {name: answer.headers[name] for name in self.server.passes_on if name in answer.headers}
        self._answer(answer.status_code, answer.content, {**told, "Content-Length": str(length)})

    do_POST = do_GET

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def road(live_url: str) -> Iterator[Road]:
    with Road(live_url) as road:
        thread = threading.Thread(target=road.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield road
        road.shutdown()
        thread.join()


@pytest.fixture
def far(road: Road, key: str) -> Iterator[Client]:
    """A client behind the road that has had an answer."""
    with Client(road.url, key) as client:
        client.jobs()
        road.seen.clear()
        yield client


def test_a_job_whose_answer_is_lost_is_made_once(far: Client, road: Road, job: JobSpec) -> None:
    road.faults = [LOST, 503, 429]

    made = far.submit(job)

    assert road.seen == ["POST /v1/jobs"] * 4
    assert [each.id for each in far.jobs().jobs] == [made.id]


def test_without_a_key_of_its_own_each_submission_is_a_job(far: Client, job: JobSpec) -> None:
    assert far.submit(job).id != far.submit(job).id


@pytest.mark.parametrize("faults", [[LOST], [LOST, 503]], ids=str)
def test_a_submission_that_may_be_queued_when_patience_ends_says_so_with_its_key(
    road: Road, key: str, job: JobSpec, faults: list[str | int]
) -> None:
    with Client(road.url, key, retry_s=0.2 if faults[1:] else 0.0) as client:
        client.jobs()
        road.faults = [*faults, *[503] * 100]
        with pytest.raises(Unreachable, match="may be queued: look with `wiretune list` before") as lost:
            client.submit(job)

        assert lost.value.idempotency_key and lost.value.idempotency_key in str(lost.value)
        road.faults = []
        again = client.submit(job, idempotency_key=lost.value.idempotency_key)
        assert [each.id for each in client.jobs().jobs] == [again.id]


def test_awaited_it_is_made_once_too(road: Road, key: str, job: JobSpec) -> None:
    async def submit() -> None:
        async with AsyncClient(road.url, key) as client:
            await client.jobs()
            road.faults = [LOST, 429]
            made = await client.submit(job)
            assert [each.id for each in (await client.jobs()).jobs] == [made.id]

    asyncio.run(submit())


def test_a_verb_whose_answer_is_lost_is_not_asked_again(far: Client, road: Road, job: JobSpec) -> None:
    made = far.submit(job)
    road.seen.clear()
    road.faults = [LOST]

    with pytest.raises(Unreachable, match="may have been done: look, as with `wiretune show`"):
        made.pause()

    assert road.seen == [f"POST /v1/jobs/{made.id}:pause"]
    assert made.refresh().state is JobState.PAUSED


def test_a_verb_for_a_version_is_asked_again_and_done_once(far: Client, road: Road, job: JobSpec) -> None:
    made = far.submit(job)
    road.faults = [503]
    assert made.pause(version=made.view.version).state is JobState.PAUSED

    road.faults = [LOST]
    with pytest.raises(ApiError, match="is queued now") as refusal:
        made.resume(version=made.view.version)

    assert refusal.value.status == 412


@pytest.mark.parametrize("status", [502, 504])
def test_a_proxy_without_its_service_is_outlived(far: Client, road: Road, job: JobSpec, status: int) -> None:
    made = far.submit(job)
    made.cancel()
    road.faults = [status] * 2

    assert made.wait().state is JobState.CANCELLED

    road.faults, road.seen = [status], []
    with pytest.raises(Unreachable, match=f"a proxy says {status}"):
        made.cancel()
    assert len(road.seen) == 1  # the service may have heard of it


def test_whoever_waits_for_a_job_outlives_an_absence_that_no_other_call_does(
    road: Road, key: str, job: JobSpec
) -> None:
    with Client(road.url, key, retry_s=0.1) as client:
        made = client.submit(job)
        client.cancel(made.id)
        road.faults = [503] * 100
        with pytest.raises(ApiError, match="503"):
            client.jobs()

        road.faults = [503, 502, LOST, 503]
        assert made.wait().state is JobState.CANCELLED
        assert road.faults == []


def test_whoever_awaits_a_job_outlives_it_too(road: Road, key: str, job: JobSpec) -> None:
    async def wait() -> JobState:
        async with AsyncClient(road.url, key, retry_s=0.1) as client:
            made = await (await client.submit(job)).cancel()
            road.faults = [503, 502, LOST, 503]
            return (await made.wait()).state

    assert asyncio.run(wait()) is JobState.CANCELLED


def test_a_wait_ends_with_its_timeout_though_the_service_is_away(road: Road, key: str, job: JobSpec) -> None:
    with Client(road.url, key, retry_s=0.1) as client:
        made = client.submit(job)
        road.faults = [503] * 100

        with pytest.raises(ApiError, match="503"):
            made.wait(timeout_s=0.5)


def test_awaited_it_is_outlived_too(road: Road, key: str) -> None:
    async def ask() -> None:
        async with AsyncClient(road.url, key) as client:
            await client.jobs()
            road.faults = [502, 504]
            await client.jobs()

    asyncio.run(ask())


def test_a_service_that_has_never_answered_is_not_waited_for(road: Road, key: str) -> None:
    road.faults = [LOST]

    with Client(road.url, key) as client, pytest.raises(Unreachable):
        client.jobs()

    assert len(road.seen) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_a_first_call_that_is_answered_with_a_refusal_is_made_again(road: Road, key: str, status: int) -> None:
    road.faults = [status] * 2

    with Client(road.url, key) as client:
        client.jobs()

    assert len(road.seen) == 3


def test_a_download_that_breaks_begins_again_behind_what_was_there(
    far: Client, road: Road, reporting: Reporting
) -> None:
    reporting.run_to_the_end()
    out = io.BytesIO()
    out.write(b"mine, ")
    road.faults = [CUT, CUT]

    far.save_weights(reporting.job_id, out)

    assert (out.getvalue(), len(road.seen)) == (b"mine, weights of tuned", 3)


WHOLE_ROAD = ("Content-Type", "ETag", "Repr-Digest", "Content-Range")


def test_a_download_that_breaks_goes_on_behind_what_has_come(far: Client, road: Road, reporting: Reporting) -> None:
    reporting.run_to_the_end()
    road.faults, road.passes_on, road.ranges = [CUT, LOST, CUT], WHOLE_ROAD, []
    out = io.BytesIO()
    out.write(b"mine, ")

    far.save_weights(reporting.job_id, out)

    assert out.getvalue() == b"mine, weights of tuned"
    assert road.ranges == ["", "bytes=8-", "bytes=8-", "bytes=12-"]


def test_a_part_that_was_not_asked_for_is_not_appended(far: Client, road: Road, reporting: Reporting) -> None:
    reporting.run_to_the_end()
    road.faults, road.passes_on, road.ranges = [CUT, ELSEWHERE], WHOLE_ROAD, []
    out = io.BytesIO()
    out.write(b"mine, ")

    far.save_weights(reporting.job_id, out)

    assert (out.getvalue(), road.ranges) == (b"mine, weights of tuned", ["", "bytes=8-", ""])


def test_the_digest_is_of_all_that_came_before_and_after_a_break(
    far: Client, road: Road, reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporting.run_to_the_end()
    road.faults, road.passes_on = [CUT], WHOLE_ROAD
    write, out = CheckedFile.write, io.BytesIO()
    monkeypatch.setattr(CheckedFile, "write", lambda file, chunk: write(file, chunk.replace(b"w", b"W")))

    with pytest.raises(DamagedDownload):
        far.save_weights(reporting.job_id, out)

    assert out.getvalue() == b"Weights of tuned"


def test_a_file_that_has_changed_at_a_break_is_downloaded_anew(
    far: Client, road: Road, store: Store, reporting: Reporting, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, out = store.storage, io.BytesIO()
    url = storage.file_url(reporting.job_id, "notes.txt")
    storage.write(url, b"at first")
    road.faults, road.passes_on, road.ranges = [CUT], WHOLE_ROAD, []
    monkeypatch.setattr("api.client.time.sleep", lambda _: storage.write(url, b"by now another"))

    far.save_file(reporting.job_id, "notes.txt", out)

    assert (out.getvalue(), road.ranges) == (b"by now another", ["", "bytes=4-"])


def test_a_download_that_breaks_keeps_what_it_is_appended_to(
    far: Client, road: Road, reporting: Reporting, tmp_path: Path
) -> None:
    reporting.run_to_the_end()
    path = tmp_path / "all"
    path.write_bytes(b"mine, ")
    road.faults = [CUT, CUT]

    with open(os.open(path, os.O_WRONLY | os.O_APPEND), "wb") as out:  # as a shell opens `>>`
        assert out.tell() == 0
        far.save_weights(reporting.job_id, out)

    assert path.read_bytes() == b"mine, weights of tuned"


def test_awaited_it_begins_again_too(road: Road, key: str, reporting: Reporting) -> None:
    async def save() -> bytes:
        async with AsyncClient(road.url, key) as client:
            road.faults, out = [CUT], io.BytesIO()
            await client.save_weights(reporting.job_id, out)
            return out.getvalue()

    reporting.run_to_the_end()

    assert asyncio.run(save()) == b"weights of tuned"


def test_a_download_that_cannot_begin_again_says_that_the_connection_broke(
    far: Client, road: Road, reporting: Reporting
) -> None:
    reporting.run_to_the_end()
    road.faults = [CUT]
    reader, writer = os.pipe()

    with (
        open(reader),
        open(writer, "wb") as pipe,
        pytest.raises(Unreachable, match=r"^the connection to .* broke: ") as broken,
    ):
        far.save_weights(reporting.job_id, pipe)

    assert "TLS" not in str(broken.value)
    assert len(road.seen) == 1


def test_another_refusal_is_final(far: Client, road: Road) -> None:
    with pytest.raises(ApiError, match="404"):
        far.job("job-none")

    assert len(road.seen) == 1


class Clock:
    """Stands where `time` stands; its time passes by pauses alone."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def refused(patience: Patience, status: int, retry_after_s: float, clock: Clock) -> bool:
    """Fail a call so; return whether it is final, else wait as long as is asked."""
    try:
        clock.now += patience.pause_s(ApiError(status, "", detail="", retry_after_s=retry_after_s))
    except ApiError:
        return True
    return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("api.retries.time", clock)
    return clock


def test_patience_with_a_download_is_renewed_where_more_has_come_than_ever(clock: Clock) -> None:
    restarts, broken = Restarts(io.BytesIO(), lambda: Patience(calls.weights("j"), 20.0)), away()
    for num_bytes in (0, 1, 2):
        clock.now += 60.0
        restarts.pause_s(broken, num_bytes)

    clock.now += 60.0
    with pytest.raises(Unreachable):
        restarts.pause_s(broken, 2)  # it began again, and has come no further


def test_the_service_says_how_long_to_wait(clock: Clock) -> None:
    assert not refused(Patience(calls.jobs(), 10.0), 503, 3.0, clock) and clock.now == 3.0
    assert refused(Patience(calls.jobs(), 2.0), 503, 3.0, clock)  # that is later than anybody waits


def test_a_limit_is_sat_out_once_however_short_the_patience(clock: Clock) -> None:
    for retry_s in (0.1, 20.0):
        patience, began = Patience(calls.pause("j"), retry_s), clock.now

        assert not refused(patience, 429, 60.0, clock) and clock.now - began == 60.0
        assert refused(patience, 429, 60.0, clock)


def test_a_wait_for_a_limit_leaves_patience_for_what_comes_behind_it(clock: Clock) -> None:
    patience = Patience(calls.jobs(), 20.0)

    assert not refused(patience, 429, 60.0, clock)
    assert not refused(patience, 503, 19.0, clock) and refused(patience, 503, 2.0, clock)


def test_a_limit_is_not_sat_out_for_hours_nor_beyond_a_deadline_nor_without_any_patience(clock: Clock) -> None:
    assert refused(Patience(calls.jobs(), 20.0), 429, 3600.0, clock)
    assert refused(Patience(calls.jobs(), 20.0, within_s=30.0), 429, 60.0, clock)
    assert refused(Patience(calls.jobs(), 0.0), 429, 1.0, clock)


def test_a_wait_says_once_that_the_service_is_away_and_again_when_it_was_back(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def wait_for_half_a_minute(client: Client) -> None:
        patience = client._patience(calls.job("j"), is_waiting=True)
        patience.pause_s(ApiError(503, "", detail=""))
        clock.now += 30.0
        patience.pause_s(ApiError(503, "", detail=""))

    client = answered_with({"jobs": []})
    for _ in range(3):  # jobs that are waited for at the same time
        wait_for_half_a_minute(client)
    assert [each.name for each in caplog.records] == ["wiretune.client"]
    assert "the service at http://x is away since " in caplog.text

    client.jobs()
    wait_for_half_a_minute(client)
    assert len(caplog.records) == 2


def test_a_service_that_only_limits_requests_is_not_said_to_be_away(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    patience = answered_with({"jobs": []})._patience(calls.job("j"), is_waiting=True)
    for _ in range(3):
        patience.pause_s(ApiError(429, "", detail="", retry_after_s=30.0))
        clock.now += 30.0

    assert not caplog.records


def answered_with(content: Any) -> Client:
    """A client of a service that answers whatever is asked with `content`."""
    client = Client("http://x", "wt_any")
    transport = httpx2.MockTransport(lambda _: httpx2.Response(200, json=content))
    client._http = httpx2.Client(base_url=client.url, transport=transport)
    return client


def test_pauses_grow_to_a_limit() -> None:
    patience, away = Patience(calls.jobs(), 1000.0), Unreachable("http://x", httpx2.ConnectError("refused"))

    pauses = [patience.pause_s(away) for _ in range(10)]

    assert 0.05 <= pauses[0] <= 0.1 and 1.0 <= pauses[-1] <= 2.0


@pytest.mark.parametrize(
    ("call", "passing"),
    [
        (calls.pause("j"), {"not connected", 429}),
        (calls.pause("j", version=1), {"not connected", "cut off", "late", 429, 503}),
        (calls.retry("j", version=1), {"not connected", "cut off", "late", 429, 503}),
        (calls.clone("j", {}), {"not connected", "cut off", "late", 429, 503}),
        (calls.trials("j"), {"not connected", "cut off", "late", 429, 503}),
        (calls.report("j"), {"not connected", "cut off", "late", 429, 503}),
    ],
)
def test_a_call_is_made_again_where_that_is_safe(call: calls.Call[Any], passing: set[Any]) -> None:
    errors: dict[Any, ApiError | Unreachable] = {
        "not connected": Unreachable("http://x", httpx2.ConnectError("refused")),
        "cut off": Unreachable("http://x", httpx2.ReadError("reset")),
        "late": Unreachable("http://x", httpx2.ReadTimeout("timed out")),
        **{status: ApiError(status, "", detail="") for status in (404, 409, 422, 429, 500, 503)},
    }

    assert {each for each, error in errors.items() if may_repeat(call, error)} == passing


@pytest.mark.parametrize(("patience_s", "num_asked"), [(20.0, 1), (600.0, 2)])
def test_only_one_who_follows_a_job_asks_again_after_a_late_answer(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, patience_s: float, num_asked: int
) -> None:
    """By default patience ends with the first answer that is late: the service may still work on it."""
    asked: list[float] = []

    def late(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.extensions["timeout"]["read"])
        clock.now += asked[-1]
        if len(asked) > 1:
            return httpx2.Response(200, json=[])
        raise httpx2.ReadTimeout("timed out")

    monkeypatch.setattr("api.client.time.sleep", lambda _: None)
    with Client("http://x", "wt_any", retry_s=patience_s, away_s=patience_s) as client:
        client._has_answered = True
        client._http = httpx2.Client(base_url=client.url, transport=httpx2.MockTransport(late))
        if num_asked == 1:
            with pytest.raises(Unreachable, match=r"^http://x did not answer within 60 s$"):
                client.stages("j")
        else:
            assert client.stages("j") == ()

    assert asked == [60.0] * num_asked


def away() -> Unreachable:
    return Unreachable("http://x", httpx2.ReadError("reset"))


def said(number: int) -> tuple[str, int]:
    event = Event(id=number, job_id="j", project="p", kind=EventKind.JOB, at=datetime.now(UTC), data={})
    return event.model_dump_json(), number


class Streams:
    """Stands where streams of events come from: each of `lives` is what one of them yields before it is lost.

    Behind them the service is away, and a minute passes with each failure.
    """

    def __init__(self, clock: Clock, *lives: list[tuple[str, int]]) -> None:
        self._clock, self._lives = clock, list(lives)

    def blocking(self, _: Call[Any]) -> Iterator[tuple[str, int]]:
        yield from self._next()
        raise away()

    async def awaited(self, _: Call[Any]) -> AsyncIterator[tuple[str, int]]:
        for each in self._next():
            yield each
        raise away()

    def _next(self) -> list[tuple[str, int]]:
        if self._lives:
            return self._lives.pop(0)
        self._clock.now += 60.0
        return []


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("api.client", "api.async_client"):
        monkeypatch.setattr(f"{module}.POLL_S", 0.001)


@pytest.mark.usefixtures("no_pause")
def test_a_reader_that_takes_its_time_loses_no_patience(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    with Client("http://x", "", away_s=90.0) as client:
        client._has_answered = True
        monkeypatch.setattr(client, "_stream", Streams(clock, [said(1)], [said(2)]).blocking)
        events = client.events()

        assert next(events).id == 1
        clock.now += 3600.0
        assert next(events).id == 2
        with pytest.raises(Unreachable):
            next(events)


def test_a_reader_of_events_waits_for_as_long_as_the_service_asks() -> None:
    failures = StreamFailures(lambda: Patience(calls.jobs(), 600.0))

    assert failures.pause_s(ApiError(429, "", detail="", retry_after_s=50.0)) == 50.0


@pytest.mark.usefixtures("no_pause")
def test_a_reader_without_patience_is_told_of_the_first_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with Client("http://x", "", retry_s=0.0) as client:
        client._has_answered = True
        monkeypatch.setattr(client, "_stream", Streams(Clock(), [said(1)], [said(2)]).blocking)
        events = client.events()

        assert next(events).id == 1
        with pytest.raises(Unreachable):
            next(events)


@pytest.mark.usefixtures("no_pause")
def test_a_reader_that_awaits_loses_none_either(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    async def read() -> list[int]:
        async with AsyncClient("http://x", "", away_s=90.0) as client:
            client._has_answered = True
            monkeypatch.setattr(client, "_stream", Streams(clock, [said(1)], [said(2)]).awaited)
            found = []
            with pytest.raises(Unreachable):
                async for event in client.events():
                    found.append(event.id)
                    clock.now += 3600.0
            return found

    assert asyncio.run(read()) == [1, 2]
