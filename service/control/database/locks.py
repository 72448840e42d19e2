"""The state dir of the service, and the locks that give it and its SQLite file to one process only."""

import fcntl
import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from sqlalchemy import make_url

from service.control.database.engine import is_sqlite
from service.errors import Unavailable
from service.settings import Settings

_USE_IT = "use that one, or stop it"


def prepare_state_dir(settings: Settings) -> None:
    """Create the state dir, readable only by its owner. Raises Unavailable if that is not permitted."""
    folder = settings.state_dir
    try:
        make_private(folder)
    except OSError as error:
        raise Unavailable(f"cannot make the folder {folder}: {error.strerror}; check WIRETUNE_STATE_DIR") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Unavailable(f"cannot write into the folder {folder}; check WIRETUNE_STATE_DIR")


def make_private(folder: Path) -> None:
    """Create a folder that only its owner can read. Our own empty folder is restricted likewise. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_uid == os.geteuid() and not any(folder.iterdir()):
        folder.chmod(0o700)


def lock(path: Path, *, purpose: str, remedy: str = _USE_IT) -> IO[str]:
    """Lock `path` for this process until the returned file is closed, and write our pid into it.

    Raises OSError, and Unavailable, naming the pid and the `remedy`, where another process holds it. The system frees
    it when we die.
    """
    file = open(path, "a+")  # noqa: SIM115  (held open: closing it releases the lock)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
    except BlockingIOError:
        file.seek(0)
        pid = file.read().strip() or "unknown"
        file.close()
        raise Unavailable(f"{purpose} is in use by process {pid} ({path}); {remedy}") from None
    except OSError:  # a file system without locks, or a full disk
        with suppress(OSError):  # closing tries to write the pid again
            file.close()
        raise
    return file


def lock_service(settings: Settings) -> ExitStack:
    """Lock the state dir, and a SQLite database, for this process until the result is closed. Raises Unavailable.

    A SQLite database has its own lock file beside it, since services with other state dirs may use it, too. PostgreSQL
    serves any number of them.
    """
    url = settings.resolved_database_url
    with ExitStack() as held:
        held.enter_context(_lock_state_dir(settings.state_dir, is_replica=not is_sqlite(url)))
        if is_sqlite(url) and (name := make_url(url).database):
            file = Path(name).resolve()
            try:
                held.enter_context(lock(file.with_name(f"{file.name}.lock"), purpose="the service's database"))
            except OSError as error:
                raise Unavailable(
                    f"cannot write beside the database {file}: {error.strerror}; check WIRETUNE_DATABASE_URL"
                ) from error
        return held.pop_all()


def _lock_state_dir(folder: Path, *, is_replica: bool) -> IO[str]:
    path = folder / "service.lock"
    remedy = f"{_USE_IT}; or give this replica a WIRETUNE_STATE_DIR of its own" if is_replica else _USE_IT
    try:
        return lock(path, purpose="the service's state dir", remedy=remedy)
    except OSError as error:
        raise Unavailable(f"cannot lock {path}: {error.strerror}; check WIRETUNE_STATE_DIR") from error
