"""Files below a local folder, reached without following links.

A job may put a link in the place of its files and folders at any time, also between the check of a path and its use. So
each part of a path is opened relative to the folder before it, and none may be a link. The folder at the top is the
operator's, and may be one. Functions raise OSError, with the errno ELOOP where a link is in the way.
"""

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import IO

#: A pipe would keep its reader waiting.
_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
#: A folder on the way is only entered: with O_PATH, which not all systems have, it need not be readable.
_TO_ENTER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY


def open_file(top: str, parts: Sequence[str]) -> IO[bytes]:
    """Open the file at `parts` below `top` for reading. It may be a pipe."""
    *above, name = parts
    with _folder(top, above) as folder:
        return open(name, "rb", opener=lambda path, _: os.open(path, _TO_READ, dir_fd=folder))


def write(top: str, parts: Sequence[str], content: bytes) -> None:
    """Write a file, and create the folders above it. The file appears under its name only when complete.

    A link in its place is replaced.
    """
    *above, name = parts
    unfinished = f"{name}.{secrets.token_hex(4)}.partial"
    os.makedirs(top, exist_ok=True)
    with _folder(top, above, creates=True) as folder:
        try:
            with open(unfinished, "xb", opener=partial(os.open, mode=0o666, dir_fd=folder)) as file:
                file.write(content)
                file.flush()
                _sync(file.fileno())
            os.rename(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
            _sync_names(folder)
        finally:
            with suppress(FileNotFoundError):  # renamed
                os.unlink(unfinished, dir_fd=folder)


def remove_file(top: str, parts: Sequence[str]) -> None:
    """Remove a file, or a link in its place."""
    *above, name = parts
    with _folder(top, above) as folder:
        os.unlink(name, dir_fd=folder)


@contextmanager
def _folder(top: str, parts: Sequence[str], *, creates: bool = False) -> Iterator[int]:
    """Provide a descriptor of the folder at `parts` below `top`."""
    folder = os.open(top, _TO_ENTER)
    try:
        for part in parts:
            if creates:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=folder)
            below = _enter(part, folder)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def _enter(name: str, folder: int) -> int:
    try:
        return os.open(name, _TO_ENTER | os.O_NOFOLLOW, dir_fd=folder)
    except NotADirectoryError as error:  # Linux says this of a link, too
        if stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from error
        raise


def _sync_names(folder: int) -> None:
    """Flush the names in a folder to disk. One that nobody may list cannot be flushed."""
    with suppress(PermissionError):
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
        try:
            _sync(readable)
        finally:
            os.close(readable)


def _sync(opened: int) -> None:
    """Flush a file or a folder to disk: after a power cut, the database may still name the file."""
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network mounts cannot fsync
            raise
