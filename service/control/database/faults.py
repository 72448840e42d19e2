"""Tell apart errors of the database: another transaction was in the way, an outage, or the statement itself."""

import sqlite3

from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    IntegrityError,
    ProgrammingError,
    SQLAlchemyError,
    TimeoutError as NoFreeConnection,
)

#: unique_violation, serialization_failure, deadlock_detected: postgresql.org/docs/current/errcodes-appendix.html
_COLLISIONS = frozenset({"23505", "40001", "40P01"})
#: Classes of SQLSTATE: data exception, program limit exceeded. They are about what was sent.
_OF_WHAT_WAS_SENT = ("22", "54")


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


def is_full(error: SQLAlchemyError) -> bool:
    """Return whether SQLite found the disk full, and has undone the transaction."""
    return getattr(getattr(error, "orig", None), "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def _sqlstate(error: SQLAlchemyError) -> str:
    """Return PostgreSQL's code of the error; SQLite has none."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) or ""


def said(error: Exception) -> str:
    """Return the database's own words, without the statement and its parameters: those are for the log."""
    return str(getattr(error, "orig", None) or error)
