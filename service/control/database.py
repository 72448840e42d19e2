"""Opens the database: directories, the one-process lock of SQLite, connection settings, migrations."""

import fcntl
import os
from pathlib import Path
from typing import IO, Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from service.errors import Unavailable
from service.settings import Settings

_MIGRATIONS = Path(__file__).parent / "migrations"
_BUSY_TIMEOUT_MS = 10_000
_BACKENDS = ("sqlite", "postgresql")
_ALLOWED = "allowed: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME"


def prepare_state_dir(settings: Settings) -> None:
    """Create the state dir, readable by its owner alone; raises Unavailable where we may not."""
    folder = settings.state_dir
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise Unavailable(f"cannot make the folder {folder}: {error.strerror}; check WIRETUNE_STATE_DIR") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Unavailable(f"cannot write into the folder {folder}; check WIRETUNE_STATE_DIR")


def lock(path: Path, *, purpose: str) -> IO[str]:
    """Take `path` for this process until the returned file is closed, and write our pid into it.

    Raises Unavailable, naming the pid, where another process holds it. The system frees it when we die.
    """
    file = open(path, "a+")  # noqa: SIM115  (held open: closing it gives the lock back)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        pid = file.read().strip() or "unknown"
        file.close()
        raise Unavailable(f"{purpose} is in use by process {pid} ({path}); use that one, or stop it") from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def is_sqlite(url: str) -> bool:
    """Whether `url` names a SQLite file, which one process at a time may serve; raises Unavailable for no known URL."""
    try:
        backend = make_url(url).get_backend_name()
    except (ArgumentError, ValueError) as error:  # the latter for a port that is no number
        raise Unavailable(f"WIRETUNE_DATABASE_URL is no database's URL; {_ALLOWED}") from error
    if backend not in _BACKENDS:
        raise Unavailable(f"WIRETUNE_DATABASE_URL names a database of kind `{backend}`; {_ALLOWED}")
    return backend == "sqlite"


def connect(url: str) -> Engine:
    """Return an engine for `url` (SQLite or PostgreSQL), with the durability the API promises.

    Raises Unavailable where the URL's driver is not installed.
    """
    if not is_sqlite(url):
        return _engine(url, pool_pre_ping=True)
    engine = _engine(url, connect_args={"timeout": _BUSY_TIMEOUT_MS / 1000, "check_same_thread": False})
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _engine(url: str, **options: Any) -> Engine:
    try:
        return create_engine(url, **options)
    except (ImportError, NoSuchModuleError) as error:
        driver = make_url(url).drivername
        message = f"the driver of `{driver}` in WIRETUNE_DATABASE_URL is not installed: {error}"
        raise Unavailable(f"{message}; `pip install 'wiretune[postgres]'` brings that of `postgresql`") from error


def _configure_sqlite(connection: Any, _record: Any) -> None:
    # Python's driver would begin transactions late and break savepoints; `_begin_sqlite` begins them instead.
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")  # NORMAL survives a killed process, not a power cut
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def migrate(engine: Engine, *, revision: str = "head") -> None:
    """Bring the schema to `revision`, up or down."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        if revision == "base":
            command.downgrade(config, revision)
        else:
            command.upgrade(config, revision)


def said(error: Exception) -> str:
    """Return the database's own words, without the statement and its parameters: those are for the log."""
    return str(getattr(error, "orig", None) or error)
