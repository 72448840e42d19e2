"""A database that temporarily refuses writes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from service.control.store import Store

_STATEMENT = {"sqlite": "PRAGMA query_only = ON", "postgresql": "SET TRANSACTION READ ONLY"}


@contextmanager
def read_only(store: Store) -> Iterator[None]:
    """As after a failover to a standby, or a file system that was remounted."""
    engine = store._db.engine

    def forbid(connection: Any) -> None:
        connection.exec_driver_sql(_STATEMENT[engine.dialect.name])

    event.listen(engine, "begin", forbid)
    try:
        yield
    finally:
        event.remove(engine, "begin", forbid)
        engine.dispose()
