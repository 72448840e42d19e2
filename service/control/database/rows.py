"""Plain rows that a transaction stores last, by one statement per table, however many writes share the transaction.

Sixteen submissions in a group make a hundred rows. One by one, each would cost a statement, and on PostgreSQL a round
trip. Code that looks for such a row within the transaction must call `store` first.
"""

from typing import Any

from sqlalchemy import Insert
from sqlalchemy.orm import Session


def add(session: Session, statement: Insert, *values: dict[str, Any]) -> None:
    """Add rows to store by `statement`, after those of earlier statements. Pass the same statement object each time."""
    _waiting(session).setdefault(statement, []).extend(values)


def store(session: Session) -> None:
    """Store the rows that were added."""
    session.flush()  # the rows may refer to objects in the session
    for statement, values in _waiting(session).items():
        if values:
            session.connection().execute(statement, values)
    drop(session)


def num_waiting(session: Session) -> int:
    """Return the number of rows added but not stored."""
    return sum(map(len, _waiting(session).values()))


def drop(session: Session) -> None:
    """Drop the rows added but not stored."""
    _waiting(session).clear()


def _waiting(session: Session) -> dict[Insert, list[dict[str, Any]]]:
    waiting: dict[Insert, list[dict[str, Any]]] = session.info.setdefault("rows", {})
    return waiting
