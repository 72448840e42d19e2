"""Classify database errors: a conflict with another transaction, an outage, or a fault of the statement."""

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
#: SQLSTATE classes of faulty statements: data exception, program limit exceeded.
_OF_WHAT_WAS_SENT = ("22", "54")


def is_collision(error: SQLAlchemyError) -> bool:
    """Return whether another replica's transaction interfered, so that a retry may succeed."""
    return _sqlstate(error) in _COLLISIONS


def is_outage(error: BaseException | None) -> bool:
    """Return whether the database failed, not a statement: it is unreachable, full, read-only or locked too long."""
    if isinstance(error, NoFreeConnection):
        return True
    if not isinstance(error, DBAPIError) or is_collision(error):
        return False
    is_statements_own = isinstance(error, IntegrityError | DataError | ProgrammingError)
    return not is_statements_own and not _sqlstate(error).startswith(_OF_WHAT_WAS_SENT)


def is_full(error: SQLAlchemyError) -> bool:
    """Return whether SQLite found the disk full and has undone the transaction."""
    return getattr(getattr(error, "orig", None), "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


def _sqlstate(error: SQLAlchemyError) -> str:
    """Return PostgreSQL's error code; SQLite has none."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) or ""


def said(error: Exception) -> str:
    """Return the database's own message, without the statement and its parameters, which belong in the log."""
    return str(getattr(error, "orig", None) or error)
