"""Data sets by URL: downloaded once for each node, held to their SHA-256, and kept in a cache of bounded size.

A cached file is named by its SHA-256. Who uses one holds a shared lock on it until its process ends, so that it is not
evicted; who downloads one holds an exclusive lock.
"""

import errno
import fcntl
import hashlib
import http.client
import logging
import os
import secrets
import shutil
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import urljoin, urlsplit

from trainers import filesystem
from trainers.addresses import is_public
from trainers.spec.workloads import RemoteFile
from trainers.workload import NoData

#: In the workers' environment: the cache's folder, its size, and `true` to allow plain http and private addresses.
CACHE_VARIABLE, SIZE_VARIABLE, PRIVATE_VARIABLE = (
    "WIRETUNE_DATA_CACHE",
    "WIRETUNE_DATA_CACHE_GB",
    "WIRETUNE_DATA_PRIVATE",
)
_DEFAULT_GB = 50.0
_CHUNK_BYTES = 1 << 20
_MAX_REDIRECTS = 5
_ANSWER_S = 30.0  # of a server, for each piece
_DOWNLOAD_S = 6 * 3600.0  # longest wait for another process that downloads the same file

log = logging.getLogger("wiretune.data")
_held: dict[Path, int] = {}  # locks of the files that this process uses


def fetched(files: Mapping[str, RemoteFile]) -> dict[str, str]:
    """Return the path of each file on this machine, downloaded unless it is in the cache.

    Raises NoData for what cannot be had, is another file, or is larger than the cache.
    """
    return {name: str(_fetched(f"workload.data.{name}", file)) for name, file in files.items()}


def _fetched(field: str, file: RemoteFile) -> Path:
    folder = _folder()
    path = folder / file.sha256
    lock = _held.get(path)
    lock = os.open(folder / f"{file.sha256}.lock", os.O_RDWR | os.O_CREAT, 0o644) if lock is None else lock
    try:
        _share(lock, field, file, path)
    except BaseException:
        _held.pop(path, None)
        os.close(lock)
        raise
    _held[path] = lock
    os.utime(path)  # the least recently used goes first
    return path


def _share(lock: int, field: str, file: RemoteFile, path: Path) -> None:
    """Return with a shared lock on the file, once it is there: whoever has the exclusive one downloads it."""
    deadline = time.monotonic() + _DOWNLOAD_S
    while not (_is_locked(lock, fcntl.LOCK_SH) and path.exists()):
        if _is_locked(lock, fcntl.LOCK_EX):
            if not path.exists():
                _download(field, file, path)
            continue
        if time.monotonic() > deadline:
            waited = f"another process has not downloaded it within {_DOWNLOAD_S:g} s; see its log"
            raise NoData(f"`{field}`: {waited}")
        time.sleep(0.1)


def _is_locked(lock: int, kind: int) -> bool:
    """Return whether the lock is had now; one that was held before is given up."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _folder() -> Path:
    given = os.environ.get(CACHE_VARIABLE)
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wiretune" / "data"
    folder = Path(given).expanduser() if given else default
    if not folder.is_absolute():  # each worker has a working directory of its own
        raise NoData(f"{CACHE_VARIABLE} must be an absolute path, got `{given}`")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _limit() -> int:
    given = os.environ.get(SIZE_VARIABLE, str(_DEFAULT_GB))
    try:
        size = float(given)
    except ValueError:
        size = 0.0
    if not 0 < size < 1e6:
        raise NoData(f"{SIZE_VARIABLE} must be a size in GB, above 0 and below 1e6, got `{given}`")
    return int(size * 1e9)


def _download(field: str, file: RemoteFile, path: Path) -> None:
    """Write the file at `path`, where it appears once it is complete and is what the job says."""
    for left in path.parent.glob(f"{path.name}.*.partial"):  # by a process that was killed
        left.unlink()
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")
    started = time.monotonic()
    try:
        with _opened(field, file.url) as (content, size), partial.open("wb") as out:
            _make_room(field, path.parent, size or 0)
            found, num_bytes = _copied(field, content, out, most=_limit())
        if size is not None and num_bytes < size:
            raise OSError(f"the connection ended after {num_bytes} of {size} bytes")
        if found != file.sha256:
            raise NoData(
                f"`{field}`: {_shown(file.url)} has another SHA-256 than the job says: {found}, not {file.sha256}; the "
                "file has changed, or the job names another one"
            )
        partial.chmod(0o444)
        partial.rename(path)
        _make_room(field, path.parent, 0)  # where its size was not known before
    except (OSError, http.client.HTTPException) as error:  # which may pass: the next attempt tries it again
        why = f"`{field}`: cannot get {_shown(file.url)}: {error or type(error).__name__}"
        raise OSError(errno.EIO, why) from error
    finally:
        partial.unlink(missing_ok=True)
    log.info("%s: %d bytes in %.1f s, kept as %s", _shown(file.url), num_bytes, time.monotonic() - started, path)


def _copied(field: str, content: Any, out: IO[bytes], *, most: int) -> tuple[str, int]:
    """Copy `content`, at most so many bytes; return its SHA-256 and its size."""
    digest, num_bytes = hashlib.sha256(), 0
    while chunk := content.read(_CHUNK_BYTES):
        num_bytes += len(chunk)
        if num_bytes > most:
            raise _too_large(field, num_bytes, most)
        digest.update(chunk)
        out.write(chunk)
    return digest.hexdigest(), num_bytes


def _too_large(field: str, num_bytes: int, most: int) -> NoData:
    return NoData(
        f"`{field}` has {num_bytes / 1e9:.3g} GB or more, and this node's cache {most / 1e9:g} ({SIZE_VARIABLE})"
    )


def _make_room(field: str, folder: Path, num_bytes: int) -> None:
    """Evict the least recently used files that nobody uses until `num_bytes` more fit."""
    limit = _limit()
    if num_bytes > limit:
        raise _too_large(field, num_bytes, limit)
    files = sorted((each for each in folder.iterdir() if each.suffix != ".lock"), key=lambda each: each.stat().st_mtime)
    excess = sum(each.stat().st_size for each in files) + num_bytes - limit
    for each in files:
        if excess > 0 and each.suffix == "" and (size := _evicted(each)):
            excess -= size
    if num_bytes > (free := shutil.disk_usage(folder).free):
        raise NoData(
            f"`{field}` has {num_bytes / 1e9:.3g} GB, and the disk of {folder} {free / 1e9:.3g} GB free: make room, or "
            f"name another folder in {CACHE_VARIABLE}"
        )


def _evicted(path: Path) -> int:
    """Remove a file unless somebody uses it; return the bytes that this frees."""
    with path.with_suffix(".lock").open("ab") as lock:
        if not _is_locked(lock.fileno(), fcntl.LOCK_EX):
            return 0
        size = path.stat().st_size
        path.unlink()
    return size


def _shown(url: str) -> str:
    """Return a URL as errors and logs name it: without a password, and without the query, which may be a signature."""
    place = urlsplit(url)
    return place._replace(netloc=place.netloc.rpartition("@")[2], query="", fragment="").geturl()


@contextmanager
def _opened(field: str, url: str) -> Iterator[tuple[Any, int | None]]:
    """Give the content at `url`, and its size where that is known."""
    if filesystem.is_s3(url):
        try:
            with filesystem.reaching(url) as (store, path), store.open(path, "rb", block_size=8 << 20) as content:
                yield content, store.info(path)["size"]
        except (FileNotFoundError, PermissionError, ImportError) as error:
            raise NoData(f"`{field}`: {_shown(url)} is not to be had: {error}") from error
        return
    for _ in range(_MAX_REDIRECTS + 1):
        connection = _connected(field, url)
        try:
            place = urlsplit(url)
            connection.request("GET", f"{place.path or '/'}{f'?{place.query}' if place.query else ''}")
            with connection.getresponse() as answer:
                if answer.status == 200:
                    yield answer, answer.length
                    return
                if answer.status not in (301, 302, 303, 307, 308):
                    may_pass = answer.status in (408, 429) or not 400 <= answer.status < 500
                    kind = OSError if may_pass else NoData
                    why = f"the server answered {answer.status} {answer.reason}"
                    raise kind(f"`{field}`: {_shown(url)} is not to be had: {why}")
                url = urljoin(url, answer.getheader("Location", ""))
        finally:
            connection.close()
    raise OSError(f"more than {_MAX_REDIRECTS} redirects")


def _connected(field: str, url: str) -> http.client.HTTPConnection:
    """Return a connection to the server of `url`: to the very address that was found to be public."""
    place, may_be_private = urlsplit(url), os.environ.get(PRIVATE_VARIABLE, "").lower() == "true"
    if place.scheme not in (("https", "http") if may_be_private else ("https",)) or not place.hostname:
        raise NoData(f"`{field}`: {_shown(url)} is refused: only https:// and s3:// are allowed ({PRIVATE_VARIABLE})")
    port = place.port or (443 if place.scheme == "https" else 80)
    address = str(socket.getaddrinfo(place.hostname, port, type=socket.SOCK_STREAM)[0][4][0])
    if not may_be_private and not is_public(address):
        raise NoData(
            f"`{field}`: {place.hostname} leads to {address}, which is not public; an operator may allow such "
            f"addresses by {PRIVATE_VARIABLE}=true in the workers' environment"
        )
    made = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    connection = made(place.hostname, port, timeout=_ANSWER_S)
    connection.sock = socket.create_connection((address, port), _ANSWER_S)
    if place.scheme == "https":
        connection.sock = ssl.create_default_context().wrap_socket(connection.sock, server_hostname=place.hostname)
    return connection
