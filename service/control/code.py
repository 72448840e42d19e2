"""Packages of users' code: a row for each project that has one, and a zip on storage.

A row is deleted before its file, and leaves a `CodeRemovalRow` until the file is gone. A package with a row has a file.
"""

import base64
import json
import logging
from contextlib import suppress
from functools import partial

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, and_, delete as delete_from, func, select, tuple_, update
from sqlalchemy.orm import Session

from service.code_package import Package
from service.control.access import audit
from service.control.access.rules import Action, Owned, Principal, may, visible_project
from service.control.database import rows
from service.control.database.session import Database
from service.control.models import CodeRemovalRow, CodeRow, JobRow
from service.control.moments import moment
from service.control.storage import Storage
from service.errors import CodeInUse, InvalidJob, InvalidRequest, NotFound, TooMuchCode, Unavailable
from service.job.problems import Problem
from service.job.spec import JobSpec
from service.job.states import TERMINAL
from service.wire.base import MAX_PAGE
from service.wire.code import CodePage, CodeView

_log = logging.getLogger(__name__)
_PLACE = TypeAdapter(tuple[float, str, str])


class CodeShelf:
    """Takes, finds and deletes packages of code. Thread-safe.

    Args:
        db: has the rows.
        storage: where the zips are.
        max_packages: that a project may keep.
    """

    def __init__(self, db: Database, storage: Storage, *, max_packages: int) -> None:
        self._db, self._storage, self._max_packages = db, storage, max_packages

    def add(self, package: Package, *, by: Principal) -> CodeView:
        """Keep a package for the project of `by`; one that it has already is only noted as used.

        Raises TooMuchCode where the project has as many others as it may.
        """
        with self._db.reading() as session:  # before there is a file
            self._require_room(session, by.project, package.digest)
        url = self._storage.code_url(by.project, package.digest)
        self._storage.write(url, package.content)

        def add(session: Session) -> CodeView:
            now = self._db.now()
            row = session.get(CodeRow, (by.project, package.digest), with_for_update=True)
            if row is None:
                if session.get(CodeRemovalRow, (by.project, package.digest)) is not None:
                    raise Unavailable("this code was deleted, and its file is about to go; try again")
                self._require_room(session, by.project, package.digest)
                row = CodeRow(project=by.project, digest=package.digest, owner=by.name, created_at=now)
                row.num_bytes, row.num_files = package.num_bytes, package.num_files
                session.add(row)
                audit.add(session, by, "createCode", package.digest, now=now)
            row.used_at = now
            return _view(session, row)

        view = self._db.write(add)
        if not self._storage.has_code(by.project, package.digest):  # somebody deleted it between the file and the row
            self._storage.write(url, package.content)
        return view

    def _require_room(self, session: Session, project: str, digest: str) -> None:
        others = select(func.count()).where(CodeRow.project == project, CodeRow.digest != digest)
        if (num := session.scalar(others) or 0) >= self._max_packages:
            remedy = "delete one that no job needs (`wiretune clean`, DELETE /v1/code/{digest})"
            allowed = f"WIRETUNE_CODE_PACKAGES allows {self._max_packages}"
            raise TooMuchCode(f"project `{project}` has {num} packages of code, and {allowed}: {remedy}")

    def list(self, *, by: Principal, limit: int = MAX_PAGE, cursor: str | None = None) -> CodePage:
        """Return a page of the packages that `by` sees, newest first; raises InvalidRequest for a bad cursor."""
        place = (CodeRow.created_at, CodeRow.project, CodeRow.digest)
        query = select(CodeRow).order_by(*(column.desc() for column in place)).limit(limit + 1)
        if (project := visible_project(by)) is not None:
            query = query.where(CodeRow.project == project)
        if cursor is not None:
            query = query.where(tuple_(*place) < tuple_(*_decode(cursor)))
        with self._db.reading() as session:
            rows = session.scalars(query).all()
            shown = rows[:limit]
            following = _encode(shown[-1]) if len(rows) > limit else None
            return CodePage(packages=tuple(_view(session, row) for row in shown), next_cursor=following)

    def get(self, digest: str, *, by: Principal, project: str | None = None) -> CodeView:
        """Return the package of that digest; raises NotFound.

        Several projects may have it. `project` names one; None: one's own, or else the oldest that one sees.
        """
        with self._db.reading() as session:
            return _view(session, _find(session, digest, by, project=project))

    def owner_of(self, digest: str, *, by: Principal, project: str | None = None) -> Owned:
        """Return whose package `get` gives; raises NotFound."""
        found = self.get(digest, by=by, project=project)
        return Owned(found.owner, found.project)

    def remove(self, digest: str, *, by: Principal, project: str | None = None) -> None:
        """Delete the package that `get` gives, and its file; raises CodeInUse while a job needs it, and NotFound.

        A file that storage does not remove now is left to `remove_expired`.
        """

        def remove(session: Session) -> tuple[str, float]:
            now = self._db.now()
            row = _find(session, digest, by, project=project, is_locked=True)
            rows.store(session)  # jobs of the same group, which may name it
            if (job := _live_job(session, row)) is not None:
                raise CodeInUse(f"job `{job}` needs `{digest}`: cancel the job, or wait until it is over")
            session.delete(row)
            session.merge(CodeRemovalRow(project=row.project, digest=digest, created_at=now))
            audit.add(session, by, "deleteCode", digest, now=now)
            return row.project, now

        its_project, removed_at = self._db.write(remove)
        try:
            self._remove_file(its_project, digest, removed_at)
        except Unavailable as error:
            _log.warning("the file of deleted code stays for now: %s", error)

    def remove_expired(self) -> None:
        """Remove the files of deleted packages. Raises Unavailable where the database does not answer."""
        removals = select(CodeRemovalRow.project, CodeRemovalRow.digest, CodeRemovalRow.created_at)
        with self._db.reading() as session:
            found = session.execute(removals).all()
        for project, digest, created_at in found:
            now = self._db.now()
            if not self._db.write(partial(_claim, project=project, digest=digest, created_at=created_at, now=now)):
                continue
            with suppress(Unavailable):  # `remove` has told of it; the next time
                self._remove_file(project, digest, now)

    def _remove_file(self, project: str, digest: str, created_at: float) -> None:
        """Do an order to remove a file.

        Another replica may have taken the order over and done it, and the code may have been uploaded again since. Then
        the file that went was the new one's, and its row goes, too: who needs the code is told to upload it.
        """
        self._storage.remove_code(project, digest)
        done = partial(_end_removal, project=project, digest=digest, created_at=created_at)
        if not self._db.write(done) and not self._storage.has_code(project, digest):
            self._db.write(partial(_forget, project=project, digest=digest))


def _claim(session: Session, *, project: str, digest: str, created_at: float, now: float) -> bool:
    """Renew an order to remove a file. Return whether it still held: the code may have been uploaded again since."""
    renewed = update(CodeRemovalRow).where(_is_removal(project, digest, created_at)).values(created_at=now)
    return bool(session.execute(renewed.returning(CodeRemovalRow.digest)).all())


def _end_removal(session: Session, *, project: str, digest: str, created_at: float) -> bool:
    """Delete an order that was done. Return whether it still held: while it does, nobody uploads the code again."""
    done = delete_from(CodeRemovalRow).where(_is_removal(project, digest, created_at))
    return bool(session.execute(done.returning(CodeRemovalRow.digest)).all())


def _forget(session: Session, *, project: str, digest: str) -> None:
    row = session.get(CodeRow, (project, digest), with_for_update=True)
    if row is not None:
        session.delete(row)


def _is_removal(project: str, digest: str, created_at: float) -> ColumnElement[bool]:
    row = CodeRemovalRow
    return and_(row.project == project, row.digest == digest, row.created_at == created_at)


def use(session: Session, spec: JobSpec, *, project: str, now: float) -> None:
    """Note that a job of `project` needs the code that it names. Raises InvalidJob where the project has none such."""
    if (digest := spec.code) is not None:
        row = session.get(CodeRow, (project, digest), with_for_update=True)
        if row is None:
            raise _unknown(digest)
        row.used_at = now


def require(session: Session, spec: JobSpec, *, project: str) -> None:
    """Raise InvalidJob where the project has no such code as the job names."""
    if (digest := spec.code) is not None and session.get(CodeRow, (project, digest)) is None:
        raise _unknown(digest)


def _unknown(digest: str) -> InvalidJob:
    message = "your project has no such code: upload it with `wiretune submit --code FOLDER`, or POST /v1/code"
    return InvalidJob([Problem(pointer="/workload/code", message=message, value=digest)])


def _encode(row: CodeRow) -> str:
    return base64.urlsafe_b64encode(json.dumps([row.created_at, row.project, row.digest]).encode()).decode()


def _decode(cursor: str) -> tuple[float, str, str]:
    try:
        place = _PLACE.validate_json(base64.b64decode(cursor, altchars=b"-_", validate=True))
        if "\0" in "".join(map(str, place)):  # which PostgreSQL does not take
            raise ValueError("a NUL")
    except ValueError as error:
        message = "`cursor` is not one that this service gave out; start again without it"
        raise InvalidRequest([Problem(pointer="/cursor", message=message, value=cursor)]) from error
    return place


def _find(session: Session, digest: str, by: Principal, *, project: str | None, is_locked: bool = False) -> CodeRow:
    """Return the row that `by` means: of `project` if given, else of their own, else of another that they see."""
    query = select(CodeRow).where(CodeRow.digest == digest)
    if is_locked:
        query = query.with_for_update()
    found = {row.project: row for row in session.scalars(query.order_by(CodeRow.created_at))}
    if project is None and by.project in found:
        return found[by.project]
    named = [row for row in found.values() if project in (None, row.project)]
    seen = [row for row in named if may(by, Action.READ, Owned(row.owner, row.project))]
    if not seen:
        raise NotFound(f"there is no code `{digest}`")
    return seen[0]


def _live_job(session: Session, row: CodeRow) -> str | None:
    over = [state.value for state in TERMINAL]
    named = JobRow.spec["workload"]["code"].as_string() == row.digest
    query = select(JobRow.id).where(JobRow.state.not_in(over), JobRow.project == row.project, named)
    return session.scalars(query.limit(1)).first()


def _view(session: Session, row: CodeRow) -> CodeView:
    return CodeView(
        digest=row.digest,
        owner=row.owner,
        project=row.project,
        num_bytes=row.num_bytes,
        num_files=row.num_files,
        created_at=moment(row.created_at),
        used_at=moment(row.used_at),
        in_use=_live_job(session, row) is not None,
    )
