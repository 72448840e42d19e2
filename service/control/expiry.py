"""Forget what has expired: old events, idempotency keys and audit entries, deleted jobs, and code."""

import logging
from functools import partial

from sqlalchemy import select

from service.control import events, jobs
from service.control.access import audit
from service.control.code import CodeShelf
from service.control.database import reserve
from service.control.database.session import Database
from service.control.events import KEPT_EVENTS
from service.control.models import RemovalRow
from service.control.storage import Storage
from service.control.storage_mark import StorageMark
from service.errors import Unavailable
from service.settings import Settings

_log = logging.getLogger(__name__)
_REMEMBERED_S = 3600.0  # remember deleted jobs this long, to find what a killed driver of theirs left


class Expiry:
    """Removes what has expired, and remembers deleted jobs for an hour. Available as `Store.expiry`.

    One thread calls `remove_expired`; the other methods are thread-safe.
    """

    def __init__(
        self, db: Database, storage: Storage, settings: Settings, code: CodeShelf, *, mark: StorageMark
    ) -> None:
        self._db, self._storage, self._settings, self._code = db, storage, settings, code
        self._mark = mark
        self._left_over: set[str] = set()  # deleted jobs whose folders storage did not remove
        self._removed: set[str] = set()  # and those whose folders it did

    def remove_expired(self, now: float, *, is_clock_steady: bool = True) -> None:
        """Delete old events, idempotency keys and audit entries, and the files of deleted jobs and code.

        A clock that is not steady may be ahead, so keys and audit entries are kept then. While the disk has room again,
        its reserve is kept, too. Raises Unavailable.
        """
        self.prune_events()
        if is_clock_steady:
            self._forget_keys(now)
            self._forget_audit(now)
        self._remove_deleted(now)
        self._code.remove_expired()
        reserve.keep(self._settings.state_dir)

    def prune_events(self, *, kept: int = KEPT_EVENTS) -> None:
        """Delete old events once their number exceeds `kept` by a tenth."""
        with self._db.reading() as session:
            oldest, newest = events.bounds(session)
        if newest - oldest > 1.1 * kept:
            self._db.write(partial(events.prune, kept=kept))

    def deleted_at(self, job_id: str) -> float | None:
        """Return when a job was deleted, in seconds since the epoch; None if not within the last hour."""
        with self._db.reading() as session:
            return session.scalar(select(RemovalRow.created_at).where(RemovalRow.job_id == job_id))

    def _forget_keys(self, now: float) -> None:
        before = now - self._settings.idempotency_s
        with self._db.reading() as session:
            has_expired = jobs.has_keys(session, before=before)
        if has_expired:
            self._db.write(partial(jobs.forget_keys, before=before))

    def _forget_audit(self, now: float) -> None:
        if self._settings.audit_days is None:
            return
        before = now - self._settings.audit_days * 86_400.0
        with self._db.reading() as session:
            is_due = audit.is_older(session, than=before)
        if is_due:
            self._db.write(partial(audit.forget, before=before))

    def _remove_deleted(self, now: float) -> None:
        """Remove the folder of each deleted job, again when its hour is over: a killed driver may have written more."""
        with self._db.reading() as session:
            removals = session.execute(select(RemovalRow.job_id, RemovalRow.created_at)).all()
        ordered = {job_id for job_id, _ in removals}  # another replica may have forgotten others
        self._removed &= ordered
        self._left_over &= ordered
        for job_id, deleted_at in removals:
            is_over = now >= deleted_at + _REMEMBERED_S
            if (is_over or job_id not in self._removed) and self._has_removed(job_id) and is_over:
                self._db.write(partial(jobs.forget_removal, job_id=job_id))

    def _has_removed(self, job_id: str) -> bool:
        """Remove the folder of a deleted job. A failure is logged once and tried again later."""
        try:
            self._mark.require()  # on a storage that is not mounted no folder is found, and none would be removed later
            self._storage.remove_job(job_id)
        except Unavailable as error:
            if job_id not in self._left_over:
                _log.warning("the folder of the deleted job %s stays for now: %s", job_id, error)
            self._left_over.add(job_id)
            return False
        self._left_over.discard(job_id)
        self._removed.add(job_id)
        return True
