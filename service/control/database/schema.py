"""The schema's revision, and migrations between revisions."""

from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, func, select
from sqlalchemy.exc import SQLAlchemyError

from service.control.database.engine import connect
from service.errors import Unavailable

_MIGRATIONS = Path(__file__).parent.parent / "migrations"
_MIGRATION_LOCK = 8470  # any number that all releases share
_MIGRATION_TIMEOUT_MS = 300_000
#: The message about a database that `is_newer`.
MADE_BY_NEWER = "made by a newer release: install that one, or restore a backup"


def revisions(url: str) -> tuple[str | None, str | None]:
    """Return the schema's revision and the newest one, without changes. Raises Unavailable."""
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
    """Return whether this release does not know the schema's revision: a newer one has migrated the database."""
    return revision is not None and revision not in _revisions()


def refuse_newer(connection: Connection) -> None:
    """Raise Unavailable if a newer release has migrated the database."""
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
    """Migrate the schema to `revision`, up or down. If several replicas start at once, one of them does it.

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
