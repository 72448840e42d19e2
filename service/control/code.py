"""Packages of user code: a row for each project that has one, and a zip on storage.

Every row has its file. A row is deleted before the file, and a `CodeRemovalRow` stands for it until the file is gone.
"""

import base64
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, Select, and_, delete as delete_from, func, select, tuple_, update
from sqlalchemy.orm import Session

from service.code_package import Package
from service.control.access import audit
from service.control.access.rules import Action, Owned, Principal, may, visible_project
from service.control.database import rows
from service.control.database.session import Database
from service.control.models import CodeRemovalRow, CodeRow, JobRow
from service.control.moments import moment
from service.control.storage import Storage, StoredFile
from service.control.storage_mark import StorageMark
from service.errors import CodeInUse, InvalidJob, InvalidRequest, NotFound, TooMuchCode, Unavailable
from service.job.problems import Problem
from service.job.spec import JobSpec
from service.job.states import TERMINAL, JobState
from service.wire.base import MAX_PAGE
from service.wire.code import CodePage, CodeView

_log = logging.getLogger(__name__)
_PLACE = TypeAdapter(tuple[float, str, str])
#: A package that was used this recently makes no room: whoever uploaded it may be about to submit its job.
_STAYS_S = 86_400.0
_NOTE_USE_EVERY_S = 3600.0


class _Removal(NamedTuple):
    """An order to remove a deleted package's file, and when it was given."""

    project: str
    digest: str
    created_at: float


class CodeShelf:
    """Stores, finds and deletes packages of code. Thread-safe.

    Args:
        db: has the rows.
        storage: where the zips are.
        mark: tells if the storage is not mounted.
        max_packages: that a project may keep.
    """

    def __init__(self, db: Database, storage: Storage, *, mark: StorageMark, max_packages: int) -> None:
        self._db, self._storage, self._mark, self._max_packages = db, storage, mark, max_packages

    def add(self, package: Package, *, by: Principal) -> CodeView:
        """Store a package for the project of `by`. If the project has it already, only note its use.

        If the project has as many others as it may, one of them is deleted. Raises TooMuchCode if all are needed.
        """
        with self._db.reading() as session:  # before there is a file
            self._to_delete(session, package.digest, by)
        self._mark.require()
        url = self._storage.code_url(by.project, package.digest)
        self._storage.write(url, package.content)

        def add(session: Session) -> tuple[CodeView, _Removal | None]:
            now, removal = self._db.now(), None
            row = session.get(CodeRow, (by.project, package.digest), with_for_update=True)
            if row is None:
                if session.get(CodeRemovalRow, (by.project, package.digest)) is not None:
                    raise Unavailable("this code was deleted, and its file is about to go; try again")
                if (other := self._locked_to_delete(session, package.digest, by)) is not None:
                    removal = _delete(session, other, by=by, now=now)
                row = CodeRow(project=by.project, digest=package.digest, owner=by.name, created_at=now)
                row.num_bytes, row.num_files = package.num_bytes, package.num_files
                session.add(row)
                audit.add(session, by, "createCode", package.digest, now=now)
            row.used_at = now
            return _view(row, _live_jobs(session, [row])), removal

        view, removal = self._db.write(add)
        if removal is not None:
            self._try_to_remove_file(removal)
        if not self._storage.has_code(by.project, package.digest):  # deleted by somebody between the two writes
            self._storage.write(url, package.content)
        return view

    def _to_delete(self, session: Session, digest: str, by: Principal) -> CodeRow | None:
        """Return the package to delete so that this one has room in the project; None: it has. Raises TooMuchCode.

        That is the one used longest ago that nobody needs: of the caller's own, or else of another owner's.
        """
        others = select(CodeRow).where(CodeRow.project == by.project, CodeRow.digest != digest)
        if (session.scalar(select(func.count()).select_from(others.subquery())) or 0) < self._max_packages:
            return None
        is_unused = CodeRow.used_at < self._db.now() - _STAYS_S
        unneeded = others.where(is_unused, CodeRow.digest.not_in(_named_in(by.project)))
        order = (CodeRow.owner != by.name, CodeRow.used_at, CodeRow.digest)
        found = session.scalars(unneeded.order_by(*order).limit(1)).one_or_none()
        if found is None:
            raise TooMuchCode(
                f"WIRETUNE_CODE_PACKAGES allows a project {self._max_packages} packages of code, and `{by.project}` "
                "needs as many: jobs that are not over name them, or they were used within a day; delete one with "
                "`wiretune code delete`"
            )
        return found

    def _locked_to_delete(self, session: Session, digest: str, by: Principal) -> CodeRow | None:
        """Return the same, once no new job can name code of the project before the end of this write."""
        packages = select(CodeRow.digest).where(CodeRow.project == by.project)
        session.execute(packages.order_by(CodeRow.digest).with_for_update())
        rows.store(session)  # including new jobs of the same group
        return self._to_delete(session, digest, by)

    def list(self, *, by: Principal, limit: int = MAX_PAGE, cursor: str | None = None) -> CodePage:
        """Return a page of the packages that `by` may see, newest first. Raises InvalidRequest for a bad cursor."""
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
            live_jobs = _live_jobs(session, shown)
            return CodePage(packages=tuple(_view(row, live_jobs) for row in shown), next_cursor=following)

    def get(self, digest: str, *, by: Principal, project: str | None = None) -> CodeView:
        """Return the package with this digest. Raises NotFound, also if the storage does not have its file.

        A submitter of its project thereby uses it, since clients ask so in place of an upload. Several projects may
        have it. `project` names one; None: the caller's own, or else the oldest that they may see.
        """
        with self._db.reading() as session:
            row = _find(session, digest, by, project=project)
            view, used_at = _view(row, _live_jobs(session, [row])), row.used_at
        if not self._storage.has_code(view.project, digest):  # such as after a move to another storage
            self._mark.require()
            raise NotFound(f"the storage has no file of code `{digest}`: upload it again")
        now = self._db.now()
        if view.project == by.project and may(by, Action.UPLOAD_CODE) and now - used_at > _NOTE_USE_EVERY_S:
            used = update(CodeRow).where(CodeRow.project == by.project, CodeRow.digest == digest)
            self._db.post(lambda session: session.execute(used.values(used_at=now)))
        return view

    def open(self, digest: str, *, by: Principal, project: str | None = None) -> StoredFile:
        """Open the zip of the package that `get` returns. Raises NotFound."""
        return self._storage.open_code(self.owner_of(digest, by=by, project=project).project, digest)

    def owner_of(self, digest: str, *, by: Principal, project: str | None = None) -> Owned:
        """Return the owner of the package that `get` returns, by its row alone. Raises NotFound."""
        with self._db.reading() as session:
            row = _find(session, digest, by, project=project)
            return Owned(row.owner, row.project)

    def remove(self, digest: str, *, by: Principal, project: str | None = None) -> None:
        """Delete the package that `get` returns, and its file. Raises CodeInUse while a job needs it; NotFound.

        If storage does not remove the file now, `remove_expired` does so later.
        """

        def remove(session: Session) -> _Removal:
            now = self._db.now()
            row = _find(session, digest, by, project=project, is_locked=True)
            rows.store(session)  # including new jobs of the same group, which may name it
            if (job := _live_jobs(session, [row]).get((row.project, digest))) is not None:
                raise CodeInUse(f"job `{job}` needs `{digest}`: cancel the job, or wait until it is over")
            return _delete(session, row, by=by, now=now)

        self._try_to_remove_file(self._db.write(remove))

    def remove_expired(self) -> None:
        """Remove the files of deleted packages. Raises Unavailable if the database does not answer."""
        removals = select(CodeRemovalRow.project, CodeRemovalRow.digest, CodeRemovalRow.created_at)
        with self._db.reading() as session:
            found = session.execute(removals).all()
        for project, digest, created_at in found:
            now = self._db.now()
            if not self._db.write(partial(_claim, project=project, digest=digest, created_at=created_at, now=now)):
                continue
            with suppress(Unavailable):  # `remove` has logged it; try again next time
                self._remove_file(project, digest, now)

    def _try_to_remove_file(self, removal: _Removal) -> None:
        """Remove a deleted package's file now. If the storage does not do so, `remove_expired` tries again."""
        try:
            self._remove_file(*removal)
        except Unavailable as error:
            _log.warning("the file of deleted code is removed once the storage answers: %s", error)

    def _remove_file(self, project: str, digest: str, created_at: float) -> None:
        """Remove a deleted package's file, and then the order to remove it.

        Another replica may have done this already, and the code may have been uploaded again since. Then this call
        removed the new file, so the new row is deleted, too, and users are told to upload the code again.
        """
        self._mark.require()  # a folder that is not mounted seems to have lost the file
        self._storage.remove_code(project, digest)
        done = partial(_end_removal, project=project, digest=digest, created_at=created_at)
        if not self._db.write(done) and not self._storage.has_code(project, digest):
            self._db.write(partial(_forget, project=project, digest=digest))


def _delete(session: Session, row: CodeRow, *, by: Principal, now: float) -> _Removal:
    """Delete a package's row, and order the removal of its file."""
    session.delete(row)
    session.merge(CodeRemovalRow(project=row.project, digest=row.digest, created_at=now))
    audit.add(session, by, "deleteCode", row.digest, now=now)
    return _Removal(row.project, row.digest, now)


def _claim(session: Session, *, project: str, digest: str, created_at: float, now: float) -> bool:
    """Renew an order to remove a file. Return whether it still existed, as another replica may have done it."""
    renewed = update(CodeRemovalRow).where(_is_removal(project, digest, created_at)).values(created_at=now)
    return bool(session.execute(renewed.returning(CodeRemovalRow.digest)).all())


def _end_removal(session: Session, *, project: str, digest: str, created_at: float) -> bool:
    """Delete a completed order. Return whether it still existed: while it does, nobody can upload the code again."""
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
    """Note that a job of `project` uses the code that it names. Raises InvalidJob if the project does not have it."""
    if (digest := spec.code) is not None:
        row = session.get(CodeRow, (project, digest), with_for_update=True)
        if row is None:
            raise _unknown(digest)
        row.used_at = now


def require(session: Session, spec: JobSpec, *, project: str) -> None:
    """Raise InvalidJob if the project does not have the code that the job names."""
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
        if "\0" in "".join(map(str, place)):  # PostgreSQL does not accept it
            raise ValueError("a NUL")
    except ValueError as error:
        message = "`cursor` is not one that this service gave out; start again without it"
        raise InvalidRequest([Problem(pointer="/cursor", message=message, value=cursor)]) from error
    return place


def _find(session: Session, digest: str, by: Principal, *, project: str | None, is_locked: bool = False) -> CodeRow:
    """Return the row that `by` means: of `project` if given, else of their own, else of another that they may see."""
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


_CODE_OF_JOB = JobRow.spec["workload"]["code"].as_string()
# By state alone, which has an index: a project's finished jobs are many.
_IS_LIVE = JobRow.state.in_([state.value for state in JobState if state not in TERMINAL])


def _named_in(project: str) -> Select[tuple[str]]:
    """Return the query for the code that the project's unfinished jobs name."""
    return select(_CODE_OF_JOB).where(_IS_LIVE, JobRow.project == project, _CODE_OF_JOB.is_not(None))


def _live_jobs(session: Session, packages: Sequence[CodeRow]) -> dict[tuple[str, str], str]:
    """Return a job that is not over, by the project and the digest of each of the `packages` that such a job names."""
    named = _IS_LIVE, _CODE_OF_JOB.in_([row.digest for row in packages])
    found = session.execute(select(JobRow.project, _CODE_OF_JOB, JobRow.id).where(*named))
    return {(project, digest): job_id for project, digest, job_id in found}


def _view(row: CodeRow, live_jobs: Mapping[tuple[str, str], str]) -> CodeView:
    return CodeView(
        digest=row.digest,
        owner=row.owner,
        project=row.project,
        num_bytes=row.num_bytes,
        num_files=row.num_files,
        created_at=moment(row.created_at),
        used_at=moment(row.used_at),
        in_use=(row.project, row.digest) in live_jobs,
    )
