"""Plain rows that a transaction stores last: one statement for each table, however many writes share the transaction.

Sixteen submissions in a group make a hundred rows. Sent one by one, each costs the database's layer a statement, and
PostgreSQL a round trip. Who looks for such a row within the transaction calls `store` first.
"""

from typing import Any

from sqlalchemy import Insert
from sqlalchemy.orm import Session


def add(session: Session, statement: Insert, *values: dict[str, Any]) -> None:
    """Have rows stored by `statement`, after those of statements that came earlier. Give the same object each time."""
    _waiting(session).setdefault(statement, []).extend(values)


def store(session: Session) -> None:
    """Store the rows that were added."""
    session.flush()  # they may refer to what the session holds
    for statement, values in _waiting(session).items():
        if values:
            session.connection().execute(statement, values)
    drop(session)


def num_waiting(session: Session) -> int:
    """Return how many rows were added and not stored."""
    return sum(map(len, _waiting(session).values()))


def drop(session: Session) -> None:
    """Forget the rows that were added and not stored."""
    _waiting(session).clear()


def _waiting(session: Session) -> dict[Insert, list[dict[str, Any]]]:
    waiting: dict[Insert, list[dict[str, Any]]] = session.info.setdefault("rows", {})
    return waiting
