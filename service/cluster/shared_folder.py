"""Tells whether a trial and its workers see one storage: the trial leaves a mark there, and each worker reads it.

A machine on which that folder is not mounted makes one of its own, and writes its part of every checkpoint there.
"""

import logging
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fsspec.core import split_protocol

from trainers import filesystem
from trainers.workload import WorkloadError

_log = logging.getLogger(__name__)
#: Protocols whose URLs name a place on each machine; those of others, such as S3, name one for all.
_OF_MACHINES = (None, "file", "local")
#: How long to look for a file that a network's folder may show late, and how often.
_PATIENCE_S, _LOOK_S = 30.0, 0.5


@contextmanager
def marked(url: str) -> Iterator[str | None]:
    """Keep a small file in the attempt's folder `url`, and give its URL; None: there is nothing to look at."""
    mark = _leave_mark(url)
    try:
        yield mark
    finally:
        if mark is not None:
            with suppress(OSError), filesystem.reaching(mark) as (storage, path):
                storage.rm_file(path)


def _leave_mark(url: str) -> str | None:
    if split_protocol(url)[0] not in _OF_MACHINES:
        return None
    mark = f"{url}/.seen-{secrets.token_hex(8)}"
    try:
        filesystem.write(mark, b"")
    except OSError as error:  # the first checkpoint meets it, too
        _log.warning("cannot tell whether all workers see %s: %s", url, error)
        return None
    return mark


def sees(mark: str) -> bool:
    """Return whether this machine has the file at `mark`. True also where that cannot be read: nobody can tell."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            filesystem.read(mark)
            return True
        except (FileNotFoundError, NotADirectoryError):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_S)
        except OSError:
            return True


def stranger(machine: str, url: str) -> WorkloadError:
    """Return the refusal of a `machine` that does not see the attempt's folder `url` as this one does."""
    root = url.rsplit("/", 2)[0]  # above the job's folder and the attempt's
    return WorkloadError(
        f"machine {machine} does not see the same {root} as {socket.gethostname()}, where the run is led: one of the "
        "two has a folder of its own there; mount it on every node of the cluster"
    )
