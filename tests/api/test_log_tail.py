"""The tail of a log alone, in whole lines, and how to read on from there."""

import pytest
from fastapi.testclient import TestClient
from hypothesis import given, strategies as st

from service.control.ray_cluster.logs import bounded, ending, since, whole_length
from service.control.store import Store
from tests.api.conftest import Reporting
from tests.api.test_routes import refused

LINES = st.lists(st.binary(max_size=12).map(lambda text: text.replace(b"\n", b"") + b"\n"), max_size=40).map(b"".join)


@given(LINES, st.integers(1, 600))
def test_the_end_is_the_most_whole_lines_that_fit(log: bytes, num_bytes: int) -> None:
    start, text = ending(log, num_bytes)

    assert log[start:] == text and len(text) <= num_bytes
    last = log.rfind(b"\n", 0, max(0, len(log) - 1)) + 1
    if start and len(log) - last <= num_bytes:
        before = log.rfind(b"\n", 0, start - 1) + 1
        assert log[start - 1 : start] == b"\n" and len(log) - before > num_bytes


@given(LINES, st.integers(1, 600), st.integers(5, 60), st.integers(5, 60))
def test_the_end_of_a_log_that_was_cut_is_what_its_offset_gives(log: bytes, num: int, head: int, tail: int) -> None:
    kept = bounded([log], head=head, tail=tail)

    offset, text = ending(kept, num)

    assert since(kept, offset) == text and kept.endswith(text)


@given(LINES, st.integers(5, 60), st.integers(5, 60), LINES)
def test_a_log_that_was_cut_goes_on_behind_its_whole_length(log: bytes, head: int, tail: int, later: bytes) -> None:
    kept = bounded([log], head=head, tail=tail)

    assert whole_length(kept) == len(log)
    assert since(kept + later, whole_length(kept)) == later


def test_of_a_line_that_is_longer_than_was_asked_for_the_end_is_given() -> None:
    assert ending(b"first\n" + b"x" * 9 + b"\n", 4) == (12, b"xxx\n")
    assert ending(b"", 4) == (0, b"")


def test_a_log_goes_on_behind_its_end_without_a_gap(http: TestClient, store: Store, reporting: Reporting) -> None:
    url = f"/v1/jobs/{reporting.job_id}/logs"
    place = store.storage.log_url(reporting.job_id, 1)
    store.storage.write(place, "one\ntwo\nthr\u00e9e\n".encode())

    end = http.get(url, params={"tail": 12})
    start = int(end.headers["x-log-offset"])
    store.storage.write(place, "one\ntwo\nthr\u00e9e\nfour\n".encode())
    more = http.get(url, params={"offset": end.headers["x-log-end"]})

    assert (start, end.text) == (4, "two\nthr\u00e9e\n")
    assert (more.headers["x-log-offset"], more.headers["x-log-end"], more.text) == ("15", "20", "four\n")
    assert http.get(url).headers["x-log-offset"] == "0"


@pytest.mark.parametrize("query", ["tail=5&offset=0", "tail=0", "tail=-1"])
def test_an_end_is_asked_for_by_its_size_alone(http: TestClient, reporting: Reporting, query: str) -> None:
    (error,) = refused(http.get(f"/v1/jobs/{reporting.job_id}/logs?{query}"), 422, "invalid-request")["errors"]

    assert error["pointer"] == "/tail"
