"""Read and write files by URL: in a local folder, on S3, or anywhere else that fsspec has a driver for.

All reads and writes go through this module. S3's keys and endpoint come from where AWS's own tools find them (`AWS_*`
variables, `~/.aws`), never from a URL.
"""

import errno
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

#: Protocols of object stores: an object becomes visible only when it is complete, and there are no folders.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss"}
_S3 = ("s3://", "s3a://")
_PART_BYTES = 32 << 20
#: Attempts at a request that S3 refuses for a moment (500, 503, no answer), over half a minute at most.
_S3_ATTEMPTS = 6
_S3_OPTIONS = {
    "use_listings_cache": False,  # other processes write what we list
    "config_kwargs": {
        "retries": {"mode": "standard", "total_max_attempts": _S3_ATTEMPTS},
        "connect_timeout": 10,
        "read_timeout": 60,
    },
}


@contextmanager
def reaching(url: str) -> Iterator[tuple[Any, str]]:
    """Yield the file system of `url` and the path on it. Failures inside are raised as OSError (see `as_os_error`).

    Raises ValueError for an unknown kind of URL, ImportError if its driver is not installed.
    """
    options = _S3_OPTIONS if is_s3(url) else {}
    with as_os_error(url):
        yield fsspec.url_to_fs(url, **options)


@contextmanager
def as_os_error(url: str) -> Iterator[None]:
    """Raise botocore's errors about `url`, such as a missing key or a silent server, as OSError."""
    try:
        yield
    except Exception as error:
        if "botocore" not in sys.modules or not isinstance(error, sys.modules["botocore"].exceptions.BotoCoreError):
            raise
        kind = PermissionError if "Credential" in type(error).__name__ else OSError
        raise kind(errno.EACCES if kind is PermissionError else errno.EIO, str(error), url) from error


def is_s3(url: str) -> bool:
    """Return whether `url` is on S3, or on a store that speaks its protocol."""
    return url.startswith(_S3)


def has_folders(filesystem: Any) -> bool:
    """Return whether folders exist by themselves; in an object store they are parts of names."""
    protocols = filesystem.protocol
    return not _OBJECT_STORES.intersection((protocols,) if isinstance(protocols, str) else protocols)


def write(url: str, content: bytes) -> None:
    """Write a file, and create the folders above it. The file becomes visible only when it is complete.

    Large files go to S3 in parts, several at a time. Raises OSError, also if there is no such bucket.
    """
    with reaching(url) as (filesystem, path):
        if has_folders(filesystem):
            _write_in_folder(filesystem, path, content)
            return
        try:
            filesystem.pipe_file(path, content, **({"chunksize": _PART_BYTES} if is_s3(url) else {}))
        except FileNotFoundError as error:
            raise OSError(errno.EIO, f"there is no bucket (any more): {error}", url) from error


def _write_in_folder(filesystem: Any, path: str, content: bytes) -> None:
    partial, folder = f"{path}.{secrets.token_hex(4)}.partial", path.rpartition("/")[0]
    is_local = isinstance(filesystem, LocalFileSystem)
    filesystem.makedirs(folder, exist_ok=True)
    try:
        filesystem.pipe_file(partial, content)
        if is_local:
            _sync(partial)
        filesystem.mv(partial, path)
        if is_local:
            _sync(folder or "/")
    finally:
        with suppress(FileNotFoundError):  # moved
            filesystem.rm_file(partial)


def _sync(path: str) -> None:
    """Flush a file, or the names in a folder, to disk: after a power cut, the database may still name the file."""
    try:
        opened = os.open(path, os.O_RDONLY)
    except PermissionError:  # a folder that we may write to but not list
        return
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network mounts cannot fsync
            raise
    finally:
        os.close(opened)


def read(url: str) -> bytes:
    """Return a file's content. Raises FileNotFoundError, or OSError if the storage fails."""
    with reaching(url) as (filesystem, path):
        content: bytes = filesystem.cat_file(path)
    return content
