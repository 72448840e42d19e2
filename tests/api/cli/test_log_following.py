"""`wiretune logs --follow` prints the output of every attempt, completely and once."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from api.cli import logs
from api.cli.logs import follow_log, last_lines
from api.client import Client
from api.failures import ApiError
from service.control.ray_cluster.logs import bounded
from service.control.store import Store
from service.job.spec import JobSpec

Print = Callable[[int, bytes], None]


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "POLL_S", 0.01)


@pytest.fixture
def job_id(store: Store, job: JobSpec) -> str:
    return store.attempts.begin(store.add_job(job)[0].id).job_id


@pytest.fixture
def printed(store: Store, job_id: str) -> Print:
    """Give an attempt so much of a log."""
    storage = store.storage
    return lambda number, log: storage.write(storage.log_url(job_id, number), log)


def end(store: Store, job_id: str) -> None:
    store.cancel(job_id)
    store.attempts.lose(job_id, store.job(job_id).attempt, reason="stopped")


def test_it_goes_on_with_the_next_attempt(client: Client, store: Store, job_id: str, printed: Print) -> None:
    printed(1, b"one\n")
    pieces = follow_log(client, job_id, None)
    assert next(pieces) == b"one\n"

    printed(1, b"one\ntwo\n")
    store.attempts.lose(job_id, 1, reason="killed")
    store.attempts.begin(job_id)
    printed(2, b"three\n")
    end(store, job_id)

    assert list(pieces) == [b"two\n", b"three\n"]


@pytest.mark.parametrize("least_bytes", [1, 65_536])
@pytest.mark.parametrize(
    ("num_lines", "end"), [(1, b"three\r3\n"), (2, b"two\nthree\r3\n"), (4, b"one\n\ntwo\nthree\r3\n")]
)
def test_of_what_is_there_the_last_lines_are_given_however_much_they_take(
    client: Client,
    job_id: str,
    printed: Print,
    monkeypatch: pytest.MonkeyPatch,
    least_bytes: int,
    num_lines: int,
    end: bytes,
) -> None:
    monkeypatch.setattr(logs, "_LEAST_BYTES", least_bytes)
    monkeypatch.setattr(logs, "_BYTES_PER_LINE", 1)
    log = b"zero\none\n\ntwo\nthree\r3\n"
    printed(1, log)

    assert last_lines(client, job_id, 1, num_lines) == (end, len(log))
    assert last_lines(client, job_id, None, 9) == (log, len(log))


def test_behind_the_last_lines_it_goes_on_without_a_gap(
    client: Client, store: Store, job_id: str, printed: Print
) -> None:
    printed(1, b"one\ntwo\n")
    pieces = follow_log(client, job_id, None, num_lines=1)
    assert next(pieces) == b"two\n"

    printed(1, b"one\ntwo\nthree\n")
    store.attempts.lose(job_id, 1, reason="killed")
    store.attempts.begin(job_id)
    printed(2, b"four\nfive\n")
    end(store, job_id)

    assert list(pieces) == [b"three\n", b"four\nfive\n"]


@pytest.mark.parametrize("num_lines", [None, 300])
def test_a_long_log_that_was_cut_comes_once(
    client: Client, store: Store, job_id: str, printed: Print, num_lines: int | None
) -> None:
    kept = bounded([b"line %06d\n" % number for number in range(1000)], head=1000, tail=3000)
    printed(1, kept)
    pieces = follow_log(client, job_id, None, num_lines=num_lines)
    first = next(pieces)
    end(store, job_id)

    assert list(pieces) == [] and kept.endswith(first)
    assert b"bytes are cut here" in first


def test_of_an_attempt_asked_for_it_ends_with_it(client: Client, store: Store, job_id: str, printed: Print) -> None:
    printed(1, b"one\n")
    store.attempts.lose(job_id, 1, reason="killed")
    store.attempts.begin(job_id)

    assert list(follow_log(client, job_id, 1)) == [b"one\n"]


def test_an_attempt_without_a_log_is_passed_over_unless_it_is_the_last(
    client: Client, store: Store, job_id: str, printed: Print
) -> None:
    store.attempts.lose(job_id, 1, reason="killed")
    store.attempts.begin(job_id)
    printed(2, b"two\n")
    end(store, job_id)

    assert list(follow_log(client, job_id, None)) == [b"two\n"]
    with pytest.raises(ApiError, match="attempt 1 of job"):
        list(follow_log(client, job_id, 1))


def test_it_outlives_a_service_that_is_away_for_a_moment(
    client: Client, store: Store, job_id: str, printed: Print, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed(1, b"one\n")
    end(store, job_id)
    client.jobs()  # it has answered once
    answer, failures = client._http.send, failing()

    def flaky(request: httpx2.Request, **options: Any) -> httpx2.Response:
        failure = next(failures)
        if isinstance(failure, Exception):
            raise failure
        return failure or answer(request, **options)

    monkeypatch.setattr(client._http, "send", flaky)

    assert list(follow_log(client, job_id, None)) == [b"one\n"]
    assert next(failures, "used up") == "used up"


def failing() -> Iterator[httpx2.Response | Exception | None]:
    """A failure of each kind before each of two answers."""
    for _ in range(2):
        yield httpx2.Response(503, text="Ray is away")
        yield httpx2.ConnectError("refused")
        yield None
