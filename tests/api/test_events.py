"""Event streams lose and repeat nothing, whichever side stops, stalls or comes back."""

import asyncio
import itertools
import json
import socket
import threading
import time
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from unittest.mock import Mock
from urllib.parse import urlsplit

import httpx2
import pytest
import uvicorn
from fastapi.testclient import TestClient
from sqlalchemy import select

from api.client import Client
from api.failures import ApiError
from api.http import broadcast
from api.http.app import create_app
from api.http.broadcast import Broadcaster
from api.http.connections import Deadlines, WatchedProtocol
from api.http.server import Linger, _Server, bind, server_config
from service.control import jobs
from service.control.access.rules import LOCAL
from service.control.models import SessionRow
from service.control.processes import wait_until
from service.errors import Unavailable
from service.job.spec import JobSpec
from service.wire.access import NewKey
from service.wire.events import EventKind
from tests.support.patience import PATIENCE_S

SPEC = JobSpec.model_validate({"workload": {"kind": "digits-mlp"}, "budget": {"steps": 100}})


@pytest.fixture
def app(store):
    return create_app(store)


@pytest.fixture
def served(app):
    """The application over a real socket, which waits half a second for a reader that does not read."""
    with bind("127.0.0.1", 0) as bound:
        server = _Server(server_config(app, Deadlines(stall_s=0.5)))
        server.broadcaster = app.state.services.broadcaster
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        assert wait_until(lambda: server.started, timeout_s=PATIENCE_S, every_s=0.01)
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.fixture
def connected(served, key):
    with Client(served, key) as client:
        yield client


@pytest.fixture
def is_heard(app):
    """Returns once so many readers listen."""
    broadcaster: Broadcaster = app.state.services.broadcaster

    def is_heard(num_readers: int) -> None:
        assert wait_until(lambda: broadcaster.num_readers == num_readers, timeout_s=PATIENCE_S, every_s=0.01)

    return is_heard


def say(store, job_id, *reasons):
    jobs.on_job(store._db, job_id, lambda _, job: [jobs.explain(job, reason) for reason in reasons])


def in_thread(function):
    """Start `function`, and return what waits for its value."""
    future = Future()

    def run():
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return lambda: future.result(PATIENCE_S)


def test_a_reader_hears_what_happens_from_now_on(connected, store, is_heard):
    job_id = store.add_job(SPEC)[0].id
    heard = in_thread(lambda: list(itertools.islice(connected.events(job_id), 2)))
    is_heard(1)
    store.add_job(SPEC)  # another's
    say(store, job_id, "one", "two")

    assert [(event.job_id, event.kind, event.data["reason"]) for event in heard()] == [
        (job_id, EventKind.JOB, "one"),
        (job_id, EventKind.JOB, "two"),
    ]


def test_a_reader_that_comes_back_goes_on_where_it_was(connected, store):
    job_id = store.add_job(SPEC)[0].id
    say(store, job_id, *map(str, range(1200)))  # more than a page of the database

    first = list(itertools.islice(connected.events(after=0), 700))
    rest = list(itertools.islice(connected.events(after=first[-1].id), 501))

    assert [event.data["reason"] for event in [*first, *rest]] == ["", *map(str, range(1200))]


def test_the_client_outlives_a_lost_connection_and_misses_nothing(served, key, store, monkeypatch, is_heard):
    job_id = store.add_job(SPEC)[0].id
    with Client(served, key) as client:
        opened = []
        stream = client._http.stream
        monkeypatch.setattr(client._http, "stream", lambda *a, **k: opened.append(stream(*a, **k)) or opened[-1])
        events = client.events(job_id)
        heard = in_thread(lambda: [next(events)])
        is_heard(1)
        say(store, job_id, "one")
        [one] = heard()

        heard = in_thread(lambda: [next(events), next(events)])
        for response in _open_sockets(client):
            response.shutdown(socket.SHUT_RDWR)
        is_heard(0)
        say(store, job_id, "two", "three")

        assert [event.data["reason"] for event in (one, *heard())] == ["one", "two", "three"]
        assert len(opened) > 1


def _open_sockets(client):
    pool = client._http._transport._pool
    return [connection._connection._network_stream._sock for connection in pool.connections]


def test_a_reader_whose_events_are_gone_is_told_so_and_goes_on_from_now(connected, store, is_heard, reporting):
    reporting.start("tuned")
    reporting.stage("tuned", 0, rate=1.0, density=0.01)
    store.expiry.prune_events(kept=2)
    newest = store.newest_event()
    heard = in_thread(lambda: list(itertools.islice(connected.events(after=3), 2)))
    is_heard(1)
    say(store, reporting.job_id, "later")
    gap, later = heard()

    assert (gap.kind, gap.data, gap.id) == (EventKind.GAP, {"after": 3}, newest)
    assert later.data["reason"] == "later"


@pytest.mark.parametrize("who", ["reader", "service"])
def test_a_connected_reader_is_told_of_events_that_go_while_it_or_the_service_is_behind(
    app, store, reporting, monkeypatch, who
):
    monkeypatch.setattr("api.http.broadcast._KEPT", 1)
    monkeypatch.setattr("api.http.broadcast._AFTER_FAULT_S", 0.01)
    broadcaster = app.state.services.broadcaster
    newest = store.newest_event()

    async def stream() -> bytes:
        stream = broadcaster.stream(None)
        async with asyncio.timeout(PATIENCE_S):
            await anext(stream)
            with monkeypatch.context() as patch:
                if who == "service":
                    patch.setattr(store, "events", Mock(side_effect=Unavailable("the database does not answer")))
                reporting.start("tuned")
                reporting.stage("tuned", 0, rate=1.0, density=0.01)
                while who == "reader" and broadcaster._last < store.newest_event():
                    await broadcaster._news.wait()
                store.expiry.prune_events(kept=1)
            text = await anext(stream)
            await stream.aclose()
        return text

    lines = asyncio.run(stream()).decode().splitlines()

    assert lines[:2] == [f"id: {store.newest_event()}", "event: gap"]
    assert json.loads(lines[2].removeprefix("data: "))["data"] == {"after": newest}


def test_a_brief_stream_says_of_each_event_only_which_job_it_is_about_and_how(served, key, store):
    job_id = store.add_job(SPEC)[0].id
    asked = f"{served}/v1/jobs/{job_id}/events?after=0&brief=true"
    with httpx2.stream("GET", asked, headers=_asking(key)) as response:
        *_, number, kind, data = itertools.islice(response.iter_lines(), 6)

    assert (number, kind) == ("id: 1", "event: job")
    assert json.loads(data.removeprefix("data: ")) == {"id": 1, "job_id": job_id, "kind": "job"}


def test_a_silent_stream_gives_signs_of_life_with_the_id_to_go_on_from(served, key, store, monkeypatch):
    monkeypatch.setattr("api.http.broadcast.HEARTBEAT_S", 0.05)
    job_id, _ = store.add_job(SPEC)[0].id, store.add_job(SPEC)
    with httpx2.stream("GET", f"{served}/v1/jobs/{job_id}/events", headers=_asking(key)) as response:
        lines = list(itertools.islice(response.iter_lines(), 6))

    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert lines == ["retry: 2000", "id: 2", "", ":", "id: 2", ""]


def test_an_open_stream_is_no_use_of_a_session(served, key, store, monkeypatch):
    monkeypatch.setattr("api.http.broadcast.HEARTBEAT_S", 0.05)
    port, code = urlsplit(served).port, store.keyring.add_code(by=store.keyring.holder(key)).code
    cookie = {"Cookie": f"wiretune-{port}={store.keyring.open_session(code, address='')}"}

    def ends_at():
        store._db.write(lambda _: None)  # a renewal is stored behind the answer
        with store._db.engine.connect() as connection:
            return connection.execute(select(SessionRow.expires_at)).scalar_one()

    began = ends_at()
    monkeypatch.setattr(store._db, "now", lambda: time.time() + 7200.0)
    with httpx2.stream("GET", f"{served}/v1/events", headers=cookie | {"Accept": "text/event-stream"}) as response:
        list(itertools.islice(response.iter_lines(), 12))  # signs of life: whether it may go on is asked as often
    assert ends_at() == began
    httpx2.get(f"{served}/v1/me", headers=cookie)

    assert ends_at() > began


def test_a_stream_gives_signs_of_life_while_other_jobs_alone_have_events(served, key, store, monkeypatch):
    monkeypatch.setattr("api.http.broadcast.HEARTBEAT_S", 0.2)
    monkeypatch.setattr("api.http.broadcast.PACE_S", 0.01)
    quiet, busy, is_over = store.add_job(SPEC)[0].id, store.add_job(SPEC)[0].id, threading.Event()

    def chat():
        while not is_over.wait(0.02):
            say(store, busy, "on and on")

    chatting = threading.Thread(target=chat)
    chatting.start()
    try:
        url = f"{served}/v1/jobs/{quiet}/events"
        with httpx2.stream("GET", url, headers=_asking(key), timeout=PATIENCE_S) as answer:
            *_, comment, told, _ = itertools.islice(answer.iter_lines(), 6)
    finally:
        is_over.set()
        chatting.join()

    assert comment == ":" and int(told.removeprefix("id: ")) > 2


def _asking(key, **more):
    return {"Authorization": f"Bearer {key}", "Accept": "text/event-stream"} | more


def test_what_waits_is_sent_in_one_piece_and_last_event_id_goes_before_after(served, key, store):
    job_id = store.add_job(SPEC)[0].id
    say(store, job_id, "one", "two")
    url, asked = f"{served}/v1/events?after=0", _asking(key, **{"Last-Event-ID": "1"})
    with httpx2.stream("GET", url, headers=asked) as response:
        pieces = list(itertools.islice(response.iter_text(), 2))

    *_, events = "".join(pieces).partition("id: 1\n\n")
    assert [json.loads(line[6:])["data"]["reason"] for line in events.splitlines() if line.startswith("data: ")] == [
        "one",
        "two",
    ]


def test_a_stream_from_now_on_looks_through_no_earlier_events(served, key, store, monkeypatch):
    store.add_job(SPEC)
    asked, events = [], store.events
    monkeypatch.setattr(store, "events", lambda after, **options: asked.append(after) or events(after, **options))
    with httpx2.stream("GET", f"{served}/v1/events", headers=_asking(key)) as response:
        next(response.iter_lines())

    assert set(asked) == {store.newest_event()} and asked[0] > 0  # it may look again before this reader has gone


def test_the_same_events_are_paged_json_and_a_bad_id_is_refused(http, store):
    ids = [store.add_job(SPEC)[0].id for _ in range(3)]

    page = http.get("/v1/events", params={"after": 1, "limit": 1}).json()
    mine = http.get(f"/v1/jobs/{ids[2]}/events").json()

    assert ([event["job_id"] for event in page["events"]], page["next_after"], page["gap"]) == ([ids[1]], 2, False)
    assert [event["id"] for event in mine["events"]] == [3]
    assert http.get("/v1/events", params={"job": "job-0"}).status_code == 404
    assert http.get("/v1/jobs/job-0/events", headers={"Accept": "text/event-stream"}).status_code == 404
    assert http.get("/v1/events", headers={"Last-Event-ID": "x"}).status_code == 422
    assert http.get("/v1/events", params={"after": 2**60}).status_code == 422


def test_a_stream_needs_a_key(served):
    with Client(served, "wt_wrong") as client, pytest.raises(ApiError, match="401"):
        next(client.events())


def test_a_reader_that_stops_reading_is_cut_off_and_harms_nobody(served, connected, key, store, is_heard):
    job_id = store.add_job(SPEC)[0].id
    with closing(_stalled(served, key)):
        heard = in_thread(lambda: list(itertools.islice(connected.events(job_id, after=0), 6001)))
        is_heard(2)
        say(store, job_id, *(f"{number} {'x' * 500}" for number in range(6000)))

        assert [event.data["reason"].partition(" ")[0] for event in heard()] == ["", *map(str, range(6000))]
        is_heard(0)  # the other was cut off, though its peer is still there


def _stalled(url, key):
    """Ask for every event, and never read."""
    address = urlsplit(url)
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.connect((address.hostname, address.port))
    head = "".join(f"{name}: {value}\r\n" for name, value in _asking(key).items())
    peer.sendall(f"GET /v1/events?after=0 HTTP/1.1\r\nHost: here\r\n{head}\r\n".encode())
    return peer


def test_idle_readers_hold_no_connection_to_the_database(served, key, store, is_heard):
    with closing(_stalled(served, key)), closing(_stalled(served, key)):
        is_heard(2)
        assert wait_until(lambda: store._db.engine.pool.checkedout() == 0, timeout_s=PATIENCE_S, every_s=0.001)
    is_heard(0)


def test_a_stop_of_the_service_ends_every_stream_at_once(app, store, key):
    """Uvicorn alone would wait for it, here for ever."""
    with bind("127.0.0.1", 0) as bound:
        server = _Server(uvicorn.Config(app, log_config=None, lifespan="off"))  # with no limit to a graceful end
        server.broadcaster = app.state.services.broadcaster
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1/events"
        with httpx2.stream("GET", url, headers=_asking(key), timeout=PATIENCE_S) as response:
            pieces = response.iter_text()
            next(pieces)
            server.should_exit = True

            assert "".join(pieces) == ""  # whole, by HTTP's own mark of the end
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_stop_of_the_service_closes_a_connection_that_was_not_asked_to(app, monkeypatch):
    """One that is accepted while the others are asked to close."""
    monkeypatch.setattr(WatchedProtocol, "shutdown", lambda _: None)
    config = server_config(app, Deadlines())
    config.timeout_graceful_shutdown = 1
    with bind("127.0.0.1", 0) as bound:
        server = _Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        assert wait_until(lambda: server.started, timeout_s=PATIENCE_S, every_s=0.001)
        with socket.create_connection(bound.getsockname(), timeout=PATIENCE_S) as client:
            assert wait_until(lambda: server.server_state.connections, timeout_s=PATIENCE_S, every_s=0.001)
            server.should_exit = True
            thread.join(PATIENCE_S)

            with suppress(ConnectionResetError):
                assert client.recv(1) == b""
    assert not thread.is_alive()


def test_a_service_that_somebody_listens_to_is_needed(store):
    linger = Linger(store, linger_s=10, now=0)

    assert not linger.is_over(0, 20, num_readers=1)
    assert not linger.is_over(0, 29)
    assert linger.is_over(0, 30)


def test_a_reader_sees_events_of_its_projects_jobs_alone(app, store):
    key = store.keyring.create(NewKey(name="k", project="mine"), by=LOCAL).secret
    mine = store.add_job(SPEC, by=replace(LOCAL, project="mine"))[0].id
    others = store.add_job(SPEC)[0].id

    async def stream() -> bytes:
        stream = app.state.services.broadcaster.stream(0, project="mine")
        async with asyncio.timeout(PATIENCE_S):
            text = [await anext(stream), await anext(stream)][1]
        await stream.aclose()
        return text

    with TestClient(app, headers={"Authorization": f"Bearer {key}"}) as http:
        page = http.get("/v1/events").json()["events"]
        refused = http.get(f"/v1/events?job={others}")

    assert asyncio.run(stream()).count(b"data: ") == 1
    assert {event["job_id"] for event in page} == {mine}
    assert refused.status_code == 404


def test_a_stream_ends_soon_after_its_key_was_revoked(app, store, monkeypatch):
    monkeypatch.setattr(broadcast, "HEARTBEAT_S", 0.05)
    issued = store.keyring.create(NewKey(name="k"), by=LOCAL)
    broadcaster = app.state.services.broadcaster
    is_read = partial(wait_until, lambda: broadcaster.num_readers == 1, timeout_s=PATIENCE_S, every_s=0.01)
    revoking = threading.Thread(target=lambda: is_read() and store.keyring.revoke(issued.key.id, by=LOCAL))
    with TestClient(app, headers={"Authorization": f"Bearer {issued.secret}"}) as http:
        revoking.start()

        answer = http.get("/v1/events", headers={"Accept": "text/event-stream"})  # which comes when the stream ends

        revoking.join()
        assert answer.status_code == 200
        assert http.get("/v1/events").status_code == 401
