"""Open a SQLite file or a PostgreSQL database, with the durability that the API promises.

SQLite serves one process. PostgreSQL serves several replicas of the API, which coordinate by row locks.
"""

from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json
from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from service.errors import Unavailable

#: Reads at a time. Each has a connection, and the writer one more, for which it never waits. PostgreSQL allows 97
#: connections by default (`max_connections`), so three replicas fit.
NUM_READERS = 30
_NUM_KEPT = 10  # connections that stay open
_BUSY_TIMEOUT_MS = 10_000
_MAX_WAL_BYTES = 64_000_000  # SQLite cuts its log to this after a large transaction
_BACKENDS = ("sqlite", "postgresql")
_ALLOWED = "allowed: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME"
#: Default options of PostgreSQL's client. Without them, a vanished server blocks the writer until the kernel gives up
#: (a quarter of an hour), and a frozen replica holds its locks for ever.
_LIBPQ = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "options": f"-c lock_timeout={_BUSY_TIMEOUT_MS} -c idle_in_transaction_session_timeout=60000",
}


def is_sqlite(url: str) -> bool:
    """Return whether `url` names a SQLite file, which one process may serve. Raises Unavailable for unknown URLs."""
    try:
        backend = make_url(url).get_backend_name()
    except (ArgumentError, ValueError) as error:  # the latter for a port that is no number
        raise Unavailable(f"WIRETUNE_DATABASE_URL is no database's URL; {_ALLOWED}") from error
    if backend not in _BACKENDS:
        raise Unavailable(f"WIRETUNE_DATABASE_URL names a database of kind `{backend}`; {_ALLOWED}")
    return backend == "sqlite"


def without_password(url: str) -> tuple[URL, str | None]:
    """Return the URL without its password, and the password. One in the query takes precedence."""
    address = make_url(url)
    found = address.query.get("password", address.password)
    plain = address.set(password=None).difference_update_query(["password"])
    return plain, None if found is None else str(found)


def is_there(url: str) -> bool:
    """Return whether the database may hold anything: a SQLite file that does not exist cannot."""
    return not is_sqlite(url) or Path(make_url(url).database or "").exists()


def connect(url: str) -> Engine:
    """Return an engine for `url` (SQLite or PostgreSQL), with the durability the API promises.

    Raises Unavailable where the URL's driver is not installed.
    """
    if not is_sqlite(url):
        address = make_url(url)
        unsaid = {name: value for name, value in _LIBPQ.items() if name not in address.query}
        # The store's row locks are designed for this level, whatever the server's default is.
        return _engine(address.update_query_dict(unsaid), pool_pre_ping=True, isolation_level="READ COMMITTED")
    engine = _engine(url, connect_args={"timeout": _BUSY_TIMEOUT_MS / 1000, "check_same_thread": False})
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine


def of_one_moment(engine: Engine) -> Engine:
    """Return `engine` for readers: a transaction reads one consistent snapshot, as always on SQLite."""
    if engine.dialect.name == "sqlite":
        return engine
    return engine.execution_options(isolation_level="REPEATABLE READ")


def of_one_statement(engine: Engine) -> Engine:
    """Return `engine` for single reads, for which PostgreSQL needs neither BEGIN nor ROLLBACK."""
    if engine.dialect.name == "sqlite":
        return engine
    return engine.execution_options(isolation_level="AUTOCOMMIT")


def _engine(url: str | URL, **options: Any) -> Engine:
    try:
        return create_engine(
            url,
            json_serializer=_to_json,
            json_deserializer=from_json,
            pool_size=_NUM_KEPT,
            max_overflow=NUM_READERS + 1 - _NUM_KEPT,
            **options,
        )
    except (ImportError, NoSuchModuleError) as error:
        driver = make_url(url).drivername
        message = f"the driver of `{driver}` in WIRETUNE_DATABASE_URL is not installed: {error}"
        raise Unavailable(f"{message}; in a checkout `make setup` brings that of `postgresql`") from error


def _to_json(value: Any) -> str:
    return to_json(value, inf_nan_mode="constants").decode()  # a quarter of the time of the standard library's


def _configure_sqlite(connection: Any, _record: Any) -> None:
    # Python's driver would begin transactions late and break savepoints, so `connect` begins them.
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA journal_size_limit = {_MAX_WAL_BYTES}")
    connection.execute("PRAGMA synchronous = FULL")  # NORMAL survives a killed process, not a power cut
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
