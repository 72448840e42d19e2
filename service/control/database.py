"""Opens the database: directories, the one-process lock of SQLite, connection settings, migrations.

SQLite serves one process. PostgreSQL serves several replicas of the API, which meet in row locks.
"""

import fcntl
import os
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import IO, Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from pydantic_core import from_json, to_json
from sqlalchemy import URL, Connection, Engine, create_engine, event, func, make_url, select
from sqlalchemy.exc import (
    ArgumentError,
    DataError,
    DBAPIError,
    IntegrityError,
    NoSuchModuleError,
    ProgrammingError,
    SQLAlchemyError,
    TimeoutError as NoFreeConnection,
)

from service.errors import Unavailable
from service.settings import Settings

_MIGRATIONS = Path(__file__).parent / "migrations"
_BUSY_TIMEOUT_MS = 10_000
_BACKENDS = ("sqlite", "postgresql")
_ALLOWED = "allowed: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME"
#: What PostgreSQL's client is told unless the URL says otherwise. Without these, a server that vanished holds its
#: writer until the kernel gives up (a quarter of an hour), and a frozen replica holds its locks for ever.
_LIBPQ = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "options": f"-c lock_timeout={_BUSY_TIMEOUT_MS} -c idle_in_transaction_session_timeout=60000",
}
_MIGRATION_LOCK = 8470  # any number that every release agrees on
_MIGRATION_TIMEOUT_MS = 300_000
#: What is said of a database that `is_newer`.
MADE_BY_NEWER = "made by a newer release: install that one, or restore a backup"
#: unique_violation, serialization_failure, deadlock_detected: postgresql.org/docs/current/errcodes-appendix.html
_COLLISIONS = frozenset({"23505", "40001", "40P01"})
#: Classes of SQLSTATE: data exception, program limit exceeded. They are about what was sent.
_OF_WHAT_WAS_SENT = ("22", "54")


def prepare_state_dir(settings: Settings) -> None:
    """Create the state dir, readable by its owner alone; raises Unavailable where we may not."""
    folder = settings.state_dir
    try:
        make_private(folder)
    except OSError as error:
        raise Unavailable(f"cannot make the folder {folder}: {error.strerror}; check WIRETUNE_STATE_DIR") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Unavailable(f"cannot write into the folder {folder}; check WIRETUNE_STATE_DIR")


def make_private(folder: Path) -> None:
    """Create a folder that its owner alone can read; one of ours that is there and empty becomes so. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_uid == os.geteuid() and not any(folder.iterdir()):
        folder.chmod(0o700)


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


def lock_service(settings: Settings) -> ExitStack:
    """Take the state dir for this process, and a SQLite file with it, until the result is closed.

    The file has a lock of its own, beside it: services with other state dirs may name it, too. Raises Unavailable.
    """
    url = settings.resolved_database_url
    with ExitStack() as held:
        held.enter_context(lock(settings.state_dir / "service.lock", purpose="the service's state dir"))
        if is_sqlite(url) and (name := make_url(url).database):
            file = Path(name).resolve()
            try:
                held.enter_context(lock(file.with_name(f"{file.name}.lock"), purpose="the service's database"))
            except OSError as error:
                raise Unavailable(
                    f"cannot write beside the database {file}: {error.strerror}; check WIRETUNE_DATABASE_URL"
                ) from error
        return held.pop_all()


def is_sqlite(url: str) -> bool:
    """Return whether `url` names a SQLite file, which one process may serve. Raises Unavailable for an unknown URL."""
    try:
        backend = make_url(url).get_backend_name()
    except (ArgumentError, ValueError) as error:  # the latter for a port that is no number
        raise Unavailable(f"WIRETUNE_DATABASE_URL is no database's URL; {_ALLOWED}") from error
    if backend not in _BACKENDS:
        raise Unavailable(f"WIRETUNE_DATABASE_URL names a database of kind `{backend}`; {_ALLOWED}")
    return backend == "sqlite"


def without_password(url: str) -> tuple[URL, str | None]:
    """Return the URL as it may be shown, and its password, which may be in its query: there it goes before another."""
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
        # The row locks of the store are thought out for this level, whatever the server's default is.
        return _engine(address.update_query_dict(unsaid), pool_pre_ping=True, isolation_level="READ COMMITTED")
    engine = _engine(url, connect_args={"timeout": _BUSY_TIMEOUT_MS / 1000, "check_same_thread": False})
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine


def of_one_moment(engine: Engine) -> Engine:
    """Return `engine` as readers use it: all that a transaction reads was true at once, as it always is on SQLite."""
    if engine.dialect.name == "sqlite":
        return engine
    return engine.execution_options(isolation_level="REPEATABLE READ")


def of_one_statement(engine: Engine) -> Engine:
    """Return `engine` for readers that ask one thing: PostgreSQL needs neither a BEGIN nor a ROLLBACK for that."""
    if engine.dialect.name == "sqlite":
        return engine
    return engine.execution_options(isolation_level="AUTOCOMMIT")


def _engine(url: str | URL, **options: Any) -> Engine:
    try:
        return create_engine(url, json_serializer=_to_json, json_deserializer=from_json, **options)
    except (ImportError, NoSuchModuleError) as error:
        driver = make_url(url).drivername
        message = f"the driver of `{driver}` in WIRETUNE_DATABASE_URL is not installed: {error}"
        raise Unavailable(f"{message}; in a checkout `make setup` brings that of `postgresql`") from error


def _to_json(value: Any) -> str:
    return to_json(value, inf_nan_mode="constants").decode()  # a quarter of the time of the standard library's


def _configure_sqlite(connection: Any, _record: Any) -> None:
    # Python's driver would begin transactions late and break savepoints; `connect` has them begun instead.
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")  # NORMAL survives a killed process, not a power cut
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")


def revisions(url: str) -> tuple[str | None, str | None]:
    """Return the schema's revision, and the newest one; nothing is changed. Raises Unavailable."""
    engine = connect(url)
    try:
        with engine.connect() as connection:
            return _revision(connection), _newest_revision()
    except SQLAlchemyError as error:
        said = " ".join(str(getattr(error, "orig", error)).split())
        raise Unavailable(f"the database does not answer: {said}; check WIRETUNE_DATABASE_URL") from error
    finally:
        engine.dispose()


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


@cache
def _newest_revision() -> str | None:
    return ScriptDirectory.from_config(_alembic()).get_current_head()


def is_current(connection: Connection) -> bool:
    """Return whether the database has this release's schema."""
    return _revision(connection) == _newest_revision()


def is_newer(revision: str | None) -> bool:
    """Return whether the schema's revision is none of this release's: a newer one has migrated the database."""
    return revision is not None and revision not in _revisions()


def refuse_newer(connection: Connection) -> None:
    """Raise Unavailable where a newer release has migrated the database."""
    if is_newer(found := _revision(connection)):
        raise Unavailable(f"the database is at revision {found}, {MADE_BY_NEWER}")


@cache
def _revisions() -> frozenset[str]:
    return frozenset(each.revision for each in ScriptDirectory.from_config(_alembic()).walk_revisions())


def _alembic() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def migrate(engine: Engine, *, revision: str = "head") -> None:
    """Bring the schema to `revision`, up or down; of several replicas that start at once, one does it.

    Raises Unavailable for a database of a newer release, which is left alone.
    """
    config = _alembic()
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":  # SQLite's file is locked already
            # Waits for other replicas that migrate; the lock ends with the transaction.
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {_MIGRATION_TIMEOUT_MS}")
            connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
        refuse_newer(connection)
        if revision == "head" and is_current(connection):
            return
        config.attributes["connection"] = connection
        if revision == "base":
            command.downgrade(config, revision)
        else:
            command.upgrade(config, revision)


def is_collision(error: SQLAlchemyError) -> bool:
    """Return whether another replica's transaction was in the way, so that a retry of the write may pass."""
    return _sqlstate(error) in _COLLISIONS


def is_outage(error: BaseException | None) -> bool:
    """Return whether the database itself failed, not a statement: away, full, read-only, or locked for too long."""
    if isinstance(error, NoFreeConnection):
        return True
    if not isinstance(error, DBAPIError) or is_collision(error):
        return False
    is_statements_own = isinstance(error, IntegrityError | DataError | ProgrammingError)
    return not is_statements_own and not _sqlstate(error).startswith(_OF_WHAT_WAS_SENT)


def _sqlstate(error: SQLAlchemyError) -> str:
    """Return PostgreSQL's code of the error; SQLite has none."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) or ""


def said(error: Exception) -> str:
    """Return the database's own words, without the statement and its parameters: those are for the log."""
    return str(getattr(error, "orig", None) or error)
