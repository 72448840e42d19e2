"""Clients that stop reading, never finish a request, or disconnect: nobody waits for them, and nothing stays open."""

import asyncio
import json
import logging
import os
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
import uvicorn
from fastapi import FastAPI
from uvicorn.server import ServerState

from api.http.app import create_app
from api.http.connections import Deadlines, WatchedProtocol
from api.http.downloads import Downloads
from service.control.processes import wait_until
from service.control.storage import StoredFile
from service.control.store import Store
from service.wire.records import MetricPoints
from tests.api.conftest import Reporting, serving
from tests.support.patience import PATIENCE_S, crowd

NUM_POINTS = 20_000  # more than a megabyte of CSV
WEIGHTS_BYTES = 3_000_000


@pytest.fixture
def app(store: Store) -> FastAPI:
    return create_app(store)


@pytest.fixture
def finished(reporting: Reporting, store: Store) -> str:
    """The id of a job with a long series, large weights and a long log."""
    reporting.start("tuned")
    steps = tuple(range(NUM_POINTS))
    values = tuple(1 / (1 + step) for step in steps)
    reporting.post(
        MetricPoints(trial_id=reporting.trial("tuned"), name="loss", steps=steps, seconds=values, values=values)
    )
    reporting.finish_trial("tuned", rates=[0.1], density=0.01, loss=0.3)
    storage = store.storage
    storage.write(reporting.save("tuned"), bytes(WEIGHTS_BYTES))
    storage.write(storage.log_url(reporting.job_id, reporting.number), b"x" * WEIGHTS_BYTES)
    return reporting.job_id


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(PATIENCE_S)
        client.connect((urlsplit(url).hostname, urlsplit(url).port))
        yield client


@contextmanager
def stalled_readers(url: str, path: str, key: str, num: int) -> Iterator[list[bytes]]:
    """Clients that have begun to read an answer and do not go on; gives the beginnings."""
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(url)) for _ in range(num)]
        for client in clients:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {key}\r\n\r\n".encode())
        yield [client.recv(12) for client in clients]


def connections_out(store: Store) -> int:
    return store._db.engine.pool.checkedout()  # type: ignore[attr-defined, no-any-return]


def test_while_fifty_clients_do_not_read_their_metrics_the_service_is_ready(
    app: FastAPI, store: Store, key: str, finished: str
) -> None:
    app.state.services = replace(app.state.services, downloads=Downloads(200))
    with serving(app) as url:
        with stalled_readers(url, f"/v1/jobs/{finished}/metrics.csv", key, 50) as begun:
            stands_still = wait_until(lambda: connections_out(store) == 0, timeout_s=PATIENCE_S)
            under_way = app.state.services.downloads.num
            with httpx2.Client(base_url=url, timeout=2.0 * crowd(), trust_env=False) as http:
                answered = [http.get("/readyz").is_success for _ in range(20)]
        are_forgotten = wait_until(lambda: app.state.services.downloads.num == 0, timeout_s=2.0 * crowd())

    assert begun == [b"HTTP/1.1 200"] * 50
    assert stands_still and under_way == 50
    assert all(answered)
    assert are_forgotten and connections_out(store) == 0


def open_files(folder: Path) -> int:
    return sum(opened(place).startswith(str(folder)) for place in Path("/proc/self/fd").iterdir())


def opened(place: Path) -> str:
    try:
        return os.readlink(place)
    except FileNotFoundError:  # it was closed since it was listed
        return ""


def test_no_file_stays_open_when_readers_have_gone(app: FastAPI, store: Store, key: str, finished: str) -> None:
    folder = store.settings.state_dir / "results" / finished
    with serving(app) as url:
        with stalled_readers(url, f"/v1/jobs/{finished}/weights", key, 5):
            num_open = open_files(folder)
        are_closed = wait_until(lambda: open_files(folder) == 0, timeout_s=2.0 * crowd())

    assert num_open == 5
    assert are_closed


def test_files_on_a_storage_that_hangs_keep_nobody_from_metrics_and_logs(
    app: FastAPI, key: str, finished: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, answers_again = threading.Semaphore(0), threading.Event()

    def hang_at_the_second_read(stored: StoredFile, _part: range) -> Iterator[bytes]:
        yield b"x"
        hanging.release()
        answers_again.wait(10 * PATIENCE_S)
        yield bytes(stored.num_bytes - 1)

    monkeypatch.setattr(StoredFile, "chunks", hang_at_the_second_read)
    path, headers = f"/v1/jobs/{finished}", {"Authorization": f"Bearer {key}"}
    with (
        serving(app) as url,
        httpx2.Client(base_url=url, headers=headers, timeout=PATIENCE_S, trust_env=False) as http,
        ExitStack() as stack,
    ):
        stack.enter_context(stalled_readers(url, f"{path}/weights", key, 2))
        stack.callback(answers_again.set)
        hang = [hanging.acquire(timeout=PATIENCE_S) for _ in range(2)]
        answers = [http.get(f"{path}/{what}") for what in ("metrics.csv", "logs")]

    assert all(hang)
    assert [answer.status_code for answer in answers] == [200, 200]


@pytest.mark.parametrize("what", ["metrics.csv", "weights", "logs"])
def test_one_download_too_many_is_told_to_come_back(app: FastAPI, key: str, finished: str, what: str) -> None:
    app.state.services = replace(app.state.services, downloads=Downloads(1))
    path, headers = f"/v1/jobs/{finished}/{what}", {"Authorization": f"Bearer {key}"}
    with serving(app) as url, httpx2.Client(base_url=url, headers=headers, trust_env=False) as http:
        with stalled_readers(url, path, key, 1):
            refused = http.get(path)
        wait_until(lambda: app.state.services.downloads.num == 0, timeout_s=PATIENCE_S)
        let_in = http.get(path)

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["type"] == "/problems/busy"
    assert let_in.status_code == 200 and len(let_in.content) > 2**20


def test_one_key_has_a_quarter_of_the_downloads(app: FastAPI, store: Store, key: str, finished: str) -> None:
    app.state.services = replace(app.state.services, downloads=Downloads(8))
    path, another = f"/v1/jobs/{finished}/weights", store.add_key("another")
    with (
        serving(app) as url,
        httpx2.Client(base_url=url, trust_env=False) as http,
        stalled_readers(url, path, key, 2),
    ):
        refused, let_in = (http.get(path, headers={"Authorization": f"Bearer {each}"}) for each in (key, another))

    assert (refused.status_code, refused.json()["type"]) == (503, "/problems/busy")
    assert "of this key" in refused.json()["detail"]
    assert let_in.status_code == 200


def test_a_reader_that_takes_nothing_is_cut_off(app: FastAPI, key: str, finished: str) -> None:
    with (
        serving(app, Deadlines(stall_s=0.5)) as url,
        stalled_readers(url, f"/v1/jobs/{finished}/weights", key, 3),
    ):
        under_way = app.state.services.downloads.num

        assert under_way == 3
        assert wait_until(lambda: app.state.services.downloads.num == 0, timeout_s=PATIENCE_S)


SLOW_REQUESTS = {
    "silent": b"",
    "headers": b"GET /healthz HTTP/1.1\r\nX-Slow: ",
    "body": b"POST /v1/jobs HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer KEY\r\nContent-Length: 1000\r\n\r\n",
    "body of nobody": b"POST /v1/jobs HTTP/1.1\r\nHost: test\r\nContent-Length: 1000\r\n\r\n",
    "after an answer": b"GET /healthz HTTP/1.1\r\nHost: test\r\n\r\nGET /healthz HTTP/1.1\r\nX-Slow: ",
}


def is_over(client: socket.socket) -> bool:
    """Send one byte more, take what is there, and return whether the service has had enough."""
    try:
        client.send(b"x")
        while select.select([client], [], [], 0)[0]:
            if not client.recv(4096):
                return True
    except OSError:
        return True
    return False


def test_requests_that_trickle_are_cut_off_while_others_are_answered(app: FastAPI, key: str) -> None:
    with serving(app, Deadlines(request_s=1.0)) as url, ExitStack() as stack:
        http = stack.enter_context(httpx2.Client(base_url=url, timeout=2.0 * crowd(), trust_env=False))
        slow = [stack.enter_context(connected(url)) for _ in SLOW_REQUESTS for _ in range(20)]
        for client, begun in zip(slow, 20 * list(SLOW_REQUESTS.values()), strict=True):
            client.sendall(begun.replace(b"KEY", key.encode()))

        def are_over() -> bool:
            assert http.get("/healthz").is_success
            slow[:] = [client for client in slow if not is_over(client)]
            return not slow

        assert wait_until(are_over, timeout_s=PATIENCE_S)


def test_a_connection_may_be_idle_for_longer_than_a_request_may_take(app: FastAPI) -> None:
    with serving(app, Deadlines(request_s=0.5)) as url, connected(url) as unused:
        used = HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
        used.connect()
        used.auto_open = 0  # not again
        with closing(used):
            for _ in range(2):
                used.request("GET", "/healthz")
                with used.getresponse() as answer:
                    assert answer.status == 200 and answer.read()
                unused.recv(1)  # until it is cut off


def test_a_body_that_does_not_arrive_in_time_is_told_so(app: FastAPI, key: str) -> None:
    with serving(app, Deadlines(request_s=0.5)) as url, connected(url) as client:
        client.sendall(SLOW_REQUESTS["body"].replace(b"KEY", key.encode()) + b"{")
        answer = b"".join(iter(lambda: client.recv(4096), b""))

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ") and b"application/problem+json" in head and b"connection: close" in head
    assert json.loads(body)["type"] == "/problems/request-timeout"


def test_a_body_that_is_cut_off_is_a_line_for_the_curious(
    app: FastAPI, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="api.http.problems")
    with serving(app) as url:
        with connected(url) as client:
            client.sendall(SLOW_REQUESTS["body"].replace(b"KEY", key.encode()) + b"{")
        assert wait_until(lambda: "was gone before" in caplog.text, timeout_s=PATIENCE_S)

    assert [record.levelname for record in caplog.records if record.name == "api.http.problems"] == ["DEBUG"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "Traceback" not in caplog.text


class Wire(asyncio.Transport):
    """A transport whose client has yet to take `num_untaken` bytes."""

    num_untaken = 0

    def get_write_buffer_size(self) -> int:
        return self.num_untaken

    def write(self, data: Any) -> None: ...

    def close(self) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


@pytest.fixture
def connection() -> Iterator[WatchedProtocol]:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    loop = asyncio.new_event_loop()
    made = WatchedProtocol(uvicorn.Config(answer, log_config=None, lifespan="off"), ServerState(), {}, loop)
    made.connection_made(Wire())
    yield made
    made.connection_lost(None)
    answered(made)
    loop.close()


def answered(connection: WatchedProtocol) -> None:
    """Have the app answer what has arrived."""

    async def answer() -> None:
        await asyncio.gather(*connection.tasks, return_exceptions=True)

    connection.loop.run_until_complete(answer())


def test_a_reader_that_takes_a_little_is_left_alone(connection: WatchedProtocol) -> None:
    assert isinstance(connection.transport, Wire)
    connection.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    start = connection.loop.time()

    for second in range(100):
        connection.transport.num_untaken = 1_000_000 - second
        assert not connection._fault(start + second)

    assert not connection._fault(start + 129)
    assert "nothing of its answer for 30 s" in connection._fault(start + 130)


def test_an_idle_connection_and_the_request_that_follows_have_times_of_their_own(connection: WatchedProtocol) -> None:
    connection.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    answered(connection)
    start = connection.loop.time()
    faults = [connection._fault(start + second) for second in (0, 70)]
    connection.data_received(b"GET / HTTP/1.1\r\nX-Slow: ")
    faults += [connection._fault(start + second) for second in (71, 80)]

    assert faults == [""] * 4
    assert "not complete after 10 s" in connection._fault(start + 82)


def test_a_connection_that_stays_idle_is_cut_off(connection: WatchedProtocol) -> None:
    connection.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    answered(connection)
    start = connection.loop.time()
    connection._fault(start)

    assert not connection._fault(start + 75)
    assert "idle for 75 s" in connection._fault(start + 76)


@pytest.mark.parametrize(("rate", "is_kept"), [(2000, True), (500, False)])
def test_a_body_may_take_as_long_as_its_size_asks_for(connection: WatchedProtocol, rate: int, is_kept: bool) -> None:
    connection.data_received(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
    start = connection.loop.time()
    faults = [connection._fault(start)]

    for second in range(1, 30):
        connection.data_received(bytes(rate))
        connection.cycle.body.clear()  # as if it were read
        connection.flow.resume_reading()
        faults.append(connection._fault(start + second))

    assert any(faults) is not is_kept


def test_a_client_does_not_pay_for_a_service_that_does_not_read(connection: WatchedProtocol) -> None:
    connection.data_received(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + bytes(100_000))
    start = connection.loop.time()

    assert not any(connection._fault(start + second) for second in range(100))
