"""Check that a machine sees the service's storage folder, by a mark that the service left in it.

A machine on which the folder is not mounted would create its own, and write its part of every checkpoint there.
"""

import socket
import time

from trainers import filesystem
from trainers.workload import WorkloadError

#: How long and how often to look for a file, which a network folder may show late.
_PATIENCE_S, _LOOK_S = 30.0, 0.5


class UnlikeMachine(WorkloadError):
    """A machine of the cluster differs from the others, whatever is trained on it."""


def sees(mark: str) -> bool:
    """Return whether this machine sees the file at `mark`; also True if it cannot be read, so that nobody can tell."""
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


def require(mark: str | None) -> None:
    """Raise UnlikeMachine if there is a `mark` and this machine does not see it."""
    if mark is not None and not sees(mark):
        raise stranger(socket.gethostname(), mark)


def stranger(machine: str, mark: str) -> UnlikeMachine:
    """Return the error for a `machine` that does not see the service's `mark`."""
    root = mark.rpartition("/")[0]
    return UnlikeMachine(
        f"machine {machine} does not see the same {root} as the service: one of the two has a folder of its own "
        "there; mount it on the service's machine and on every node of the cluster"
    )
