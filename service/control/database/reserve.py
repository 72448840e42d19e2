"""A reserve of disk space, with which a service and `wiretune clean` start even once the disk is full.

SQLite needs room to open its log, and so does the pid in a lock file.
"""

import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path

_log = logging.getLogger(__name__)
_NAME = "reserve"
_NUM_BYTES = 2_000_000
_PLENTY_BYTES = 10 * _NUM_BYTES  # free on a disk on which the reserve is made


def keep(state_dir: Path) -> None:
    """Make the reserve if it is missing and the disk has plenty of room."""
    path = state_dir / _NAME
    with suppress(OSError):
        if not path.exists() and shutil.disk_usage(state_dir).free >= _PLENTY_BYTES:
            path.write_bytes(os.urandom(_NUM_BYTES))  # no file system compresses it


def release(state_dir: Path) -> bool:
    """Remove the reserve if the disk is full. Return whether there was one."""
    path = state_dir / _NAME
    if not path.exists() or shutil.disk_usage(state_dir).free >= _NUM_BYTES:
        return False
    path.unlink()
    _log.warning("the disk of %s is full, and its reserve is used up: `wiretune clean` makes room", state_dir)
    return True
