"""A download that breaks off is continued by the next one, and each of several writers of a file writes a whole one."""

import base64
import errno
import fcntl
import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

import httpx2
import pytest

from api.client import Client
from api.downloads import complete, resumable
from api.failures import DamagedDownload, Unreachable


class OneFile:
    """A service with one file. Its answers fail with `error`, if there is one, after the first five bytes."""

    def __init__(self) -> None:
        self.content, self.etag = b"all that was trained", '"1"'
        self.error: BaseException | None = None
        self.ranges: list[str] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.ranges.append(request.headers.get("Range", ""))
        first, length = 0, len(self.content)
        if self.ranges[-1] and request.headers["If-Range"] == self.etag:
            first = int(self.ranges[-1].removeprefix("bytes=").removesuffix("-"))
        digest = base64.b64encode(hashlib.sha256(self.content).digest()).decode()
        headers = {"Content-Type": "application/octet-stream", "ETag": self.etag, "Repr-Digest": f"sha-256=:{digest}:"}
        if first:
            headers["Content-Range"] = f"bytes {first}-{length - 1}/{length}"
        return httpx2.Response(206 if first else 200, headers=headers, content=self._chunks(self.content[first:]))

    def _chunks(self, content: bytes) -> Iterator[bytes]:
        if self.error is not None:
            yield content[:5]
            raise self.error
        yield content

    def download(self, place: Path, job_id: str = "job-1") -> None:
        """Download the file as weights of the job, without retries."""
        with Client("http://x", "wt_any", retry_s=0.0) as client, resumable(place) as out:
            client._http = httpx2.Client(base_url=client.url, transport=httpx2.MockTransport(self))
            client.save_weights(job_id, out)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "weights.safetensors"


@pytest.fixture
def broken(place: Path) -> OneFile:
    """The service whose file broke off on its way to `place`, and is sent whole from now on."""
    file = OneFile()
    file.error = httpx2.ReadError("cut")
    with pytest.raises(Unreachable):
        file.download(place)
    file.error = None
    assert not place.exists()
    return file


def whole(place: Path, file: OneFile) -> bool:
    """Return whether `place` has the whole file, and its folder nothing else."""
    return place.read_bytes() == file.content and list(place.parent.iterdir()) == [place]


def test_a_download_that_broke_off_is_continued(place: Path, broken: OneFile) -> None:
    broken.download(place)

    assert broken.ranges == ["", "bytes=5-"] and whole(place, broken)


def test_a_download_that_was_interrupted_twice_is_continued(place: Path, broken: OneFile) -> None:
    broken.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        broken.download(place)
    broken.error = None
    broken.download(place)

    assert broken.ranges == ["", "bytes=5-", "bytes=10-"] and whole(place, broken)


def test_a_file_that_has_changed_since_is_downloaded_anew(place: Path, broken: OneFile) -> None:
    broken.content, broken.etag = b"by now another", '"2"'
    broken.download(place)

    assert broken.ranges == ["", "bytes=5-"] and whole(place, broken)


def test_a_download_of_something_else_to_the_same_place_begins_anew(place: Path, broken: OneFile) -> None:
    broken.download(place, "job-2")

    assert broken.ranges == ["", ""] and whole(place, broken)


def test_a_download_that_arrived_damaged_is_not_continued(place: Path, broken: OneFile) -> None:
    (partial,) = place.parent.glob("*.partial")
    partial.write_bytes(b"xxxxx")
    with pytest.raises(DamagedDownload):
        broken.download(place)
    assert list(place.parent.iterdir()) == []

    broken.download(place)

    assert broken.ranges == ["", "bytes=5-", ""] and whole(place, broken)


def test_of_a_file_that_cannot_be_continued_nothing_stays(place: Path) -> None:
    file = OneFile()
    file.etag, file.error = 'W/"1"', httpx2.ReadError("cut")
    with pytest.raises(Unreachable):
        file.download(place)

    assert list(place.parent.iterdir()) == []


def test_where_locks_do_not_work_a_download_leaves_nothing_but_the_file(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    file = OneFile()
    file.download(place)

    assert list(place.parent.iterdir()) == [place] and whole(place, file)


@pytest.mark.parametrize("begin", [complete, resumable])
def test_of_two_that_write_one_file_at_a_time_each_writes_a_whole_one(
    place: Path, begin: Callable[[Path], AbstractContextManager[BinaryIO]]
) -> None:
    with begin(place) as first:
        first.write(b"first, ")
        with begin(place) as second:
            second.write(b"second")
        assert place.read_bytes() == b"second"
        first.write(b"whole")

    assert place.read_bytes() == b"first, whole" and list(place.parent.iterdir()) == [place]
