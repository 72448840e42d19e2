"""Give the disk the space back that deleted rows have left in a SQLite file."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import make_url

from service.control.database.engine import is_sqlite, is_there
from service.control.database.locks import lock_service
from service.errors import Unavailable
from service.settings import Settings

_FOR_OTHERS_S = 5.0  # how long other programs may still use the file


class Compaction(NamedTuple):
    """The bytes of the database's file before and after."""

    before: int
    after: int


def compact(settings: Settings) -> Compaction:
    """Rewrite the SQLite file of `settings` without its free pages, while no service uses it.

    Raises Unavailable if a service or another program does, if the disk has no room for a second file, or if the
    database is no SQLite file.
    """
    url = settings.resolved_database_url
    if not is_sqlite(url):
        raise Unavailable(
            "PostgreSQL reuses the space of deleted rows by itself; its `VACUUM FULL` gives it back to the disk"
        )
    if not is_there(url):
        raise Unavailable("there is no database yet; check WIRETUNE_STATE_DIR and WIRETUNE_DATABASE_URL")
    file = Path(make_url(url).database or "")
    with closing(lock_service(settings)):
        before = file.stat().st_size
        try:
            _rewrite(file)
        except sqlite3.Error as error:
            raise Unavailable(f"the database stays as it was: {error}") from error
        return Compaction(before, file.stat().st_size)


def _rewrite(file: Path) -> None:
    """Write the used pages to SQLite's log, and from there into the file. Raises Unavailable if a reader is in the way.

    Raises `sqlite3.Error` where SQLite refuses.
    """
    with closing(sqlite3.connect(file, isolation_level=None, timeout=_FOR_OTHERS_S)) as connection:
        connection.execute("VACUUM")
        is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if is_busy:
        raise Unavailable(
            f"the database keeps its size while another program reads {file}: end that program, such as a backup "
            f"(`fuser {file}` shows its pid), and run `wiretune compact` again"
        )
