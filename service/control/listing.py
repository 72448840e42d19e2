"""Lists of jobs: filters, orders and pages. Functions of one open session; they only read.

A page begins after the last job of the page before (keyset pagination), so new or deleted jobs do not shift it.
"""

import base64
import binascii
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, exists, func, literal_column, or_, select, tuple_
from sqlalchemy.orm import Session, aliased

from service.control.jobs import id_at
from service.control.models import ChunkRow, JobRow, JobTextRow, LabelRow, PointRow, TrialRow
from service.control.queries import bills, job_summary, lost_attempts, seconds_held
from service.control.results.progress import progress
from service.errors import InvalidRequest
from service.job.problems import Problem
from service.job.states import JobState
from service.wire.base import MAX_PAGE
from service.wire.jobs import JobOrder, JobPage, JobSummary

_NUM_FIRST = 1_000  # jobs whose texts are searched one by one, in a millisecond
_OF_AN_ID = re.compile("(job-)?[0-9a-f]{4,}")
# Later than any time and worse than any score: jobs without one come last. The indexes contain this literal.
_LAST: ColumnElement[float] = literal_column("1000000000000.0")


@dataclass(frozen=True, kw_only=True)
class JobFilter:
    """A filter of jobs. A job must meet all conditions."""

    states: Sequence[JobState] = ()  # any of these; none: any
    labels: Sequence[tuple[str, str]] = ()  # all of these
    ref: str | None = None  # a beginning or end of the id, or the whole name
    text: str | None = None  # words, each found in the name, the notes, a label or a method
    owner: str | None = None
    project: str | None = None
    created_after: datetime | None = None  # at that time or later
    created_before: datetime | None = None
    archived: bool | None = False  # None: both
    ids: Sequence[str] = ()  # one of these; none: any


#: All jobs that are not archived.
EVERY_JOB = JobFilter()


def page(
    session: Session,
    where: JobFilter,
    *,
    project: str | None,
    order: JobOrder,
    limit: int,
    cursor: str | None,
    count: bool,
    with_progress: bool = False,
    with_bill: bool = False,
    pointers: Sequence[str] = (),
    max_attempts: int,
) -> JobPage:
    """Return up to `limit` jobs of `project` after `cursor`, each with the fields of its spec at `pointers`.

    Raises InvalidRequest for a bad limit or cursor.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidRequest([Problem(pointer="/limit", message=f"`limit` is from 1 to {MAX_PAGE}", value=limit)])
    # The index holds the jobs in this order, so nothing is sorted, and only the page is read.
    by_label = bool(where.labels) and order.field == "created"
    job_id: Any = LabelRow.job_id if by_label else JobRow.id
    matching = _matching(session, select(job_id), where, job_id, project=project)
    if where.archived is not None:
        matching = matching.where(_is_archived(where.archived, order))
    query = _ordered(matching, order, job_id)
    if cursor is not None:
        query = query.where(_behind(_decode(cursor, order), order, job_id))
    if words := (where.text or "").lower().split():
        matching = matching.where(_has_words(job_id, words))
        found = _with_words(session, query, words, order, job_id, num=limit + 1)
    else:
        found = session.execute(query.limit(limit + 1)).all()
    following = _encode(order, found[limit - 1]) if len(found) > limit else None
    total = session.scalar(select(func.count()).select_from(matching.subquery())) if count else None
    jobs = _summaries(
        session,
        [row[0] for row in found[:limit]],
        with_progress=with_progress,
        with_bill=with_bill,
        pointers=pointers,
        max_attempts=max_attempts,
    )
    return JobPage(jobs=jobs, next_cursor=following, total=total)


def _with_words(
    session: Session, query: Select[Any], words: Sequence[str], order: JobOrder, job_id: Any, *, num: int
) -> Sequence[Row[Any]]:
    """Return the first `num` rows of `query` whose jobs have all of `words`.

    If many jobs have them, the first rows are enough. If few do, a scan of all texts finds them. The slowest case is a
    word that most jobs have but none of the first: SQLite then sorts all jobs that have it.
    """
    first = query.limit(_NUM_FIRST).subquery()
    its_id, *its_key = first.c
    # A scalar: PostgreSQL would turn `exists` into a join and scan all texts already here.
    text = select(JobTextRow.text).where(JobTextRow.job_id == its_id).scalar_subquery()
    have_all = select(first).where(*_are_in(text, words)).order_by(*_directed([*its_key, its_id], order))
    rows = session.execute(have_all.limit(num)).all()
    if len(rows) < num:
        rows = session.execute(query.where(_has_words(job_id, words)).limit(num)).all()
    return rows


def _ordered(query: Select[Any], order: JobOrder, job_id: Any) -> Select[Any]:
    columns = [job_id] if order.field == "created" else [_key(order), job_id]
    query = query if order.field == "created" else query.add_columns(_key(order))
    return query.order_by(*_directed(columns, order))


def _directed(columns: Sequence[Any], order: JobOrder) -> list[Any]:
    return [column.desc() if order.is_down else column.asc() for column in columns]


def _key(order: JobOrder) -> Any:
    """Return the column that orders jobs, before their ids."""
    if order.field == "finished":
        return func.coalesce(JobRow.finished_at, _LAST)
    if order.field == "result":
        return func.coalesce(JobRow.score, _LAST)
    return {"name": JobRow.name, "state": JobRow.state}[order.field]


def _behind(last: Sequence[Any], order: JobOrder, job_id: Any) -> ColumnElement[bool]:
    """Return the condition that a job comes after `last`, an id and the value that orders it."""
    place = job_id if order.field == "created" else tuple_(_key(order), job_id)
    end = last[0] if order.field == "created" else tuple_(last[1], last[0])
    is_behind: ColumnElement[bool] = place < end if order.is_down else place > end
    return is_behind


def _matching(
    session: Session, query: Select[Any], where: JobFilter, job_id: Any, *, project: str | None
) -> Select[Any]:
    by_label = job_id is not JobRow.id
    if by_label:
        name, value = where.labels[0]
        query = query.join(JobRow).where(LabelRow.name == name, LabelRow.value == value)
    conditions = [_has_label(job_id, *label) for label in where.labels[by_label:]]
    for column, wanted in (
        (JobRow.project, project),
        (JobRow.project, where.project),
        (JobRow.owner, where.owner),
    ):
        if wanted is not None:
            conditions.append(column == wanted)
    if where.states:
        names = [state.value for state in where.states]
        conditions.append(JobRow.state == names[0] if len(names) == 1 else JobRow.state.in_(names))
    if where.ids:
        conditions.append(job_id.in_(where.ids))
    if where.created_after is not None:  # ids are in time order
        conditions.append(job_id >= id_at(where.created_after.timestamp()))
    if where.created_before is not None:
        conditions.append(job_id < id_at(where.created_before.timestamp()))
    if where.ref is not None:
        conditions.append(_goes_by(session, where.ref))
    return query.where(*conditions)


def _is_archived(wanted: bool, order: JobOrder) -> ColumnElement[bool]:
    # No index matches `is not`. So the planner uses the index of the order, not that of archived jobs plus a sort.
    return JobRow.archived == wanted if order.field == "created" else JobRow.archived.is_not(not wanted)


def _has_label(job_id: Any, name: str, value: str) -> ColumnElement[bool]:
    label = aliased(LabelRow)
    return exists().where(label.job_id == job_id, label.name == name, label.value == value)


def _has_words(job_id: Any, words: Sequence[str]) -> ColumnElement[bool]:
    is_in: ColumnElement[bool] = job_id.in_(select(JobTextRow.job_id).where(*_are_in(JobTextRow.text, words)))
    return is_in


def _are_in(text: Any, words: Sequence[str]) -> list[ColumnElement[bool]]:
    return [text.contains(word, autoescape=True) for word in words]


def _goes_by(session: Session, ref: str) -> ColumnElement[bool]:
    """Return the condition that `ref` begins or ends the job's id, or is its whole name. A whole id means its job only.

    A part of one job's id may be another job's name. Both are found, since `ref` may name a job to be deleted.
    """
    has_name: ColumnElement[bool] = JobRow.name == ref
    if not _OF_AN_ID.fullmatch(ref):
        return has_name
    begun = f"job-{ref.removeprefix('job-')}"
    if session.get(JobRow, begun) is not None:
        return JobRow.id == begun
    return or_(JobRow.id.like(f"{begun}%"), JobRow.id.like(f"%{ref}"), has_name)


def _summaries(
    session: Session,
    job_ids: Sequence[str],
    *,
    with_progress: bool,
    with_bill: bool,
    pointers: Sequence[str],
    max_attempts: int,
) -> tuple[JobSummary, ...]:
    """Return the jobs in the order of `job_ids`, each with the lowest loss reported by any of its trials."""
    final = select(func.min(TrialRow.validation_loss)).where(TrialRow.job_id == JobRow.id)
    reported = [
        select(func.min(least))
        .join(TrialRow, TrialRow.id == table.trial_id)
        .where(TrialRow.job_id == JobRow.id, table.name == "validation_loss")
        for table, least in ((PointRow, PointRow.value), (ChunkRow, ChunkRow.least))
    ]
    losses = [each.scalar_subquery() for each in (final, *reported)]
    rows = session.execute(select(JobRow, *losses).where(JobRow.id.in_(job_ids))).all()
    told = progress(session, [row[0] for row in rows]) if with_progress else {}
    lost = lost_attempts(session, [row[0] for row in rows], max_attempts=max_attempts)
    held = seconds_held(session, [row[0] for row in rows])
    billed = bills(session, job_ids) if with_bill else {}
    found = {
        job.id: job_summary(
            job, found, told.get(job.id), lost.get(job.id), held.get(job.id), billed.get(job.id), pointers
        )
        for job, *found in rows
    }
    return tuple(found[job_id] for job_id in job_ids)


def _encode(order: JobOrder, last: Sequence[Any]) -> str:
    text = json.dumps([order.value, *last], separators=(",", ":"), ensure_ascii=False)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decode(cursor: str, order: JobOrder) -> list[Any]:
    """Decode a cursor: the id of the previous page's last job, and the value that orders it. Raises InvalidRequest."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        last: list[Any]
        word, *last = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        its_order = JobOrder(word)
        is_ours = [type(each) for each in last] == _KINDS[its_order.field] and _encode(its_order, last) == cursor
    except (binascii.Error, ValueError, TypeError, RecursionError):
        is_ours = False
    if not is_ours or "\0" in "".join(map(str, last)):
        raise _refused("is not one that this service gave out; start again without it", cursor)
    if its_order is not order:
        raise _refused(f"is of `order_by={its_order}`, this list of `order_by={order}`; start without it", cursor)
    return last


_KINDS = {
    "created": [str],
    "name": [str, str],
    "state": [str, str],
    "finished": [str, float],
    "result": [str, float],
}


def _refused(why: str, cursor: str) -> InvalidRequest:
    return InvalidRequest([Problem(pointer="/cursor", message=f"`cursor` {why}", value=cursor)])
