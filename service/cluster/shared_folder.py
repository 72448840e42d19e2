"""Tells whether a machine sees the service's storage, where that is a folder: the service has left a mark in it.

A machine on which that folder is not mounted makes one of its own, and writes its part of every checkpoint there.
"""

import socket
import time

from trainers import filesystem
from trainers.workload import WorkloadError

#: How long to look for a file that a network's folder may show late, and how often.
_PATIENCE_S, _LOOK_S = 30.0, 0.5


class UnlikeMachine(WorkloadError):
    """A machine of the cluster is not as the others are, whatever is trained on it."""


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


def require(mark: str | None) -> None:
    """Raise UnlikeMachine if this machine does not see the service's file at `mark`, if there is one."""
    if mark is not None and not sees(mark):
        raise stranger(socket.gethostname(), mark)


def stranger(machine: str, mark: str) -> UnlikeMachine:
    """Return the refusal of a `machine` that does not see the service's `mark`."""
    root = mark.rpartition("/")[0]
    return UnlikeMachine(
        f"machine {machine} does not see the same {root} as the service: one of the two has a folder of its own "
        "there; mount it on the service's machine and on every node of the cluster"
    )
