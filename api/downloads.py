"""Downloads to files: each is checked, resumes after a break, and appears only when it is complete."""

import base64
import errno
import hashlib
import io
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import httpx2

from api.calls import Call
from api.failures import DamagedDownload, Unreachable
from api.retries import Restarts

_SHA256_OF = re.compile("sha-256=:([A-Za-z0-9+/]{43}=):")


@contextmanager
def complete(path: Path) -> Iterator[BinaryIO]:
    """Give a file that becomes `path` once it is complete. Raises OSError at once if none can be written there."""
    _require_place(path)
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")  # other processes may write `path` too
    try:
        with partial.open("xb") as file:
            yield file
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def resumable(path: Path) -> Iterator[BinaryIO]:
    """Give a file for one download, as `complete` does. If it breaks off, the next download to `path` continues it.

    If another process downloads to `path` meanwhile, this one starts from the beginning in a file of its own.
    """
    _require_place(path)
    partial = PartialFile.locked(path.with_name(f"{path.name}.partial"))
    if partial is None:
        with complete(path) as file:
            yield file
        return
    with partial:
        try:
            yield partial
            partial.flush()
            os.replace(partial.path, path)  # while it is locked: nobody else writes into what is complete
        except DamagedDownload:  # nobody can say which bytes are wrong
            partial.truncate(0)
            raise
        finally:
            partial.tidy()


def _require_place(path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder", str(path.parent))


class PartialFile(io.BufferedRandom):
    """The beginning of a download, locked by this process. A note next to it says what it is the beginning of."""

    def __init__(self, path: Path, raw: io.FileIO) -> None:
        super().__init__(raw)
        self.path, self._note = path, path.with_name(f"{path.name}.json")

    @classmethod
    def locked(cls, path: Path) -> "PartialFile | None":
        """Open or create the file for this process alone. None: another process has it, or locks do not work here."""
        try:
            import fcntl  # not on Windows
        except ImportError:
            return None
        with suppress(OSError):
            raw = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+")
            try:
                fcntl.flock(raw, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.stat(path), os.fstat(raw.fileno())):  # else it was renamed before the lock
                    return cls(path, raw)
            except BlockingIOError:
                pass  # another process has it
            except OSError:
                if os.fstat(raw.fileno()).st_size == 0:  # made above
                    path.unlink(missing_ok=True)
            raw.close()
        return None

    def etag_of(self, call: Call[Any]) -> str:
        """Return the `ETag` of the answer to `call` that this file begins. If there is none, empty the file."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            noted = json.loads(self._note.read_text(encoding="utf-8"))
            if noted["source"] == _source(call):
                return str(noted["etag"])
        self.truncate(0)
        return ""

    def begin(self, call: Call[Any], etag: str) -> None:
        """Note what the file, which is empty, is going to contain. Without an `etag` no later download continues it."""
        if etag:
            self._note.write_text(json.dumps({"source": _source(call), "etag": etag}), encoding="utf-8")
        else:
            self._note.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove the file unless a later download can continue it."""
        if self.seek(0, os.SEEK_END) and self._note.exists() and self.path.exists():
            return
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)


def _source(call: Call[Any]) -> str:
    """Return the address of what is downloaded. Ids of jobs are random, so it needs no name of the service."""
    return f"{call.path}?{json.dumps(call.params, sort_keys=True, default=str)}"


class CheckedFile:
    """A download, checked against the `Repr-Digest` (RFC 9530) of its answers, if they have one.

    After a break it resumes if the service still has the same file, and restarts if not.
    """

    def __init__(self, call: Call[Any], out: BinaryIO, restarts: Restarts) -> None:
        self._whole, self._out, self._restarts = call, out, restarts
        self._response, self._etag = httpx2.Response(200), ""
        self._num_bytes, self._digest = 0, hashlib.sha256()
        if isinstance(out, PartialFile) and (etag := out.etag_of(call)):
            self._etag, self._digest, self._num_bytes = etag, hashlib.file_digest(out, "sha256"), out.tell()

    @property
    def call(self) -> Call[Any]:
        """The call that asks for the rest, or for the whole if nothing has arrived that can be continued."""
        if not self._num_bytes or not self._etag:
            return self._whole
        rest = {"Range": f"bytes={self._num_bytes}-", "If-Range": self._etag}
        return replace(self._whole, headers={**self._whole.headers, **rest})

    def begin(self, response: httpx2.Response) -> None:
        """Take the next chunks from this answer."""
        self._response = response
        is_part, said = response.status_code == 206, response.headers.get("Content-Range", "")
        if self._num_bytes and is_part and said.startswith(f"bytes {self._num_bytes}-"):
            return
        if self._num_bytes:
            self._restarts.go_back()
            self._num_bytes, self._digest = 0, hashlib.sha256()
            if is_part:  # the next attempt asks for the whole
                raise httpx2.RemoteProtocolError(f"another part than was asked for, `{said}`", request=response.request)
        self._etag = _strong_etag(response)
        if isinstance(self._out, PartialFile):
            self._out.begin(self._whole, self._etag)

    def write(self, chunk: bytes) -> None:
        self._digest.update(chunk)
        self._out.write(chunk)
        self._num_bytes += len(chunk)

    def pause_s(self, error: Unreachable) -> float:
        """Return how long to wait before the next attempt. Raises `error` if there is none."""
        return self._restarts.pause_s(error, self._num_bytes)

    def check(self) -> None:
        """Raise DamagedDownload if the written bytes do not match the answer's digest."""
        said = _SHA256_OF.search(self._response.headers.get("Repr-Digest", ""))
        if said and base64.b64decode(said[1]) != self._digest.digest():
            raise DamagedDownload(
                f"{self._response.url} arrived damaged: its SHA-256 is {self._digest.hexdigest()}, and the service "
                f"says {base64.b64decode(said[1]).hex()}; download it again"
            )


def _strong_etag(response: httpx2.Response) -> str:
    """Return the `ETag` by which the answer's bytes can be continued; empty if there is none."""
    etag: str = response.headers.get("ETag", "")
    return "" if etag.startswith("W/") or "Content-Encoding" in response.headers else etag
