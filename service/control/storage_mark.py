"""A mark in the storage folder, by which machines tell it from a folder of their own, or from none."""

import shlex
from collections.abc import Iterable
from functools import partial

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.control.database.engine import connect
from service.control.database.session import Database
from service.control.models import MarkRow
from service.control.storage import Storage
from service.errors import Unavailable


class StorageMark:
    """Leaves the mark in a new folder. The database remembers it, so a folder that has lost it is not mounted.

    Args:
        db: the database that remembers the mark.
        storage: the service's storage.
        name: the name of this service's storage.
        is_remembered: False if the folder lies beside the database, and comes and goes with it.
    """

    def __init__(self, db: Database, storage: Storage, *, name: str, is_remembered: bool) -> None:
        self._db, self._storage, self._name, self._is_remembered = db, storage, name, is_remembered
        self._is_known = False  # whether the database has it
        #: The URL of the mark, once it was left; None also if the storage is not a folder.
        self.url: str | None = None

    def require(self) -> None:
        """Leave the mark in a new folder. Raises Unavailable if the folder has lost its mark, or cannot be written.

        A storage that does not answer blocks this, so no request may wait for it.
        """
        if (url := self._storage.mark_url(self._name)) is None:
            return
        if not self._storage.has_mark(self._name):
            if self._is_remembered and self._was_left(url):
                self.url = url  # workers still check machines against the mark
                raise Unavailable(_missing(self._storage.root, url))
            self._storage.leave_mark(url)
        self.url = url
        if self._is_remembered and not self._is_known:
            self._db.write(partial(_remember, url=url, now=self._db.now()))
            self._is_known = True

    def _was_left(self, url: str) -> bool:
        with self._db.reading() as session:
            return session.get(MarkRow, url) is not None


def _remember(session: Session, *, url: str, now: float) -> None:
    if session.get(MarkRow, url) is None:
        session.add(MarkRow(url=url, left_at=now))


def remembered(database_url: str) -> list[str]:
    """Return the URLs of all marks left, from a database with this release's tables. It only reads."""
    engine = connect(database_url)
    try:
        with Session(engine) as session:
            return [*session.scalars(select(MarkRow.url))]
    finally:
        engine.dispose()


def lost(storage: Storage, marks: Iterable[str]) -> str:
    """Return why the service does not start if the folder has lost all `marks` left in it; else "".

    Raises Unavailable if the folder cannot be read.
    """
    names = {url: url.rpartition("/.storage-")[2] for url in marks}
    left = [url for url, name in names.items() if storage.mark_url(name) == url]
    if not left or any(storage.has_mark(names[url]) for url in left):
        return ""
    return _missing(storage.root, left[-1])


def _missing(root: str, url: str) -> str:
    folder, file = (shlex.quote(each.removeprefix("file://")) for each in (root, url))
    return (
        f"{root} does not hold {url.rpartition('/')[2]}, which the service left there: mount it; or where it was "
        f"emptied on purpose: mkdir -p {folder} && touch {file}"
    )
