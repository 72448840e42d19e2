"""Events: what changed of a job, stored in the transaction that changed it, and read in the order of commits.

A reader goes by ids alone, so an event must never appear behind one with a higher id. SQLite has one writer. On
PostgreSQL transactions of several replicas overlap, and would commit their ids in any order. Therefore a transaction
stores its events last, and from the first of them to its commit holds a lock that all replicas share.
"""

import threading
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.orm import Session, object_session

from service.control.models import EventRow, JobRow, MessageRow, TrialRow
from service.wire.events import EventKind

#: Of the newest events so many stay; a reader that was away for longer finds a gap.
KEPT_EVENTS = 100_000
#: Of these kinds every event stays for as long as its job: timelines are drawn from them, and there are few.
SPARED = frozenset({EventKind.JOB, EventKind.REPAIR})
_LOCK = 8471  # any number that every release agrees on, other than the migrations'
_MAX_TEXT = 500
_NOBODY = ""  # the job of the one row that stands for those that are gone
_EVENTS = insert(EventRow)


class _Told(NamedTuple):
    job_id: str
    project: str
    kind: EventKind
    data: dict[str, Any]


class Bell:
    """Wakes whoever waits for events that this process stores. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.num_rings = 0

    def ring(self) -> None:
        """Wake everybody."""
        with self._changed:
            self.num_rings += 1
            self._changed.notify_all()

    def wait(self, num_rings: int, *, timeout_s: float) -> None:
        """Return once the bell has rung more than `num_rings` times, at the latest after `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self.num_rings > num_rings, timeout_s)


# -- writing --------------------------------------------------------------------------------------------------


def tell(row: JobRow | MessageRow | TrialRow, kind: EventKind, *, within: Session | None = None, **data: Any) -> None:
    """Have the row's transaction, or the one of `within`, store an event when it commits; long texts are cut."""
    session = within or object_session(row)
    assert session is not None
    job = row if isinstance(row, JobRow) else session.get_one(JobRow, row.job_id)
    short = {name: value[:_MAX_TEXT] if isinstance(value, str) else value for name, value in data.items()}
    _waiting(session).append(_Told(job.id, job.project, kind, short))


def tell_progress(trial: TrialRow, *, first_step: int | None = None, loss: float | None = None) -> None:
    """Tell how far the trial is; `first_step` is the lowest one of new points. One event a transaction says it all."""
    tell(
        trial,
        EventKind.PROGRESS,
        trial_id=trial.id,
        first_step=first_step,
        step=trial.step,
        seconds=trial.seconds,
        learning_rate=trial.learning_rate,
        level=trial.level,
        loss=loss,
        validation_loss=trial.validation_loss,
        bytes_sent=trial.bill.get("bytes_sent"),
    )


def num_waiting(session: Session) -> int:
    """Return how many events wait for the commit."""
    return len(_waiting(session))


def take_back(session: Session, num_kept: int) -> None:
    """Drop what was told after the first `num_kept` events: a part of the transaction is undone."""
    del _waiting(session)[num_kept:]


def store(session: Session, *, now: float) -> None:
    """Store what was told. The caller commits next, and waits for nothing before that: it may hold others up."""
    told = _joined(_waiting(session))
    if not told:
        return
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    session.connection().execute(_EVENTS, [{**each._asdict(), "at": now} for each in told])


def _waiting(session: Session) -> list[_Told]:
    waiting: list[_Told] = session.info.setdefault("events", [])
    return waiting


def _joined(told: list[_Told]) -> list[_Told]:
    """Return the events with one for all the progress of a trial, where its last was."""
    joined: dict[object, _Told] = {}
    for number, each in enumerate(told):
        is_progress = each.kind is EventKind.PROGRESS
        key = each.data["trial_id"] if is_progress else number
        earlier = joined.pop(key, None)
        joined[key] = each if earlier is None else each._replace(data=_both(earlier.data, each.data))
    return list(joined.values())


def _both(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    steps = [each["first_step"] for each in (earlier, later) if each["first_step"] is not None]
    newer = later if later["loss"] is not None else later | {"loss": earlier["loss"]}
    return newer | {"first_step": min(steps, default=None)}


def forget(session: Session, job_id: str) -> None:
    """Delete the events of a job."""
    session.execute(delete(EventRow).where(EventRow.job_id == job_id))


def prune(session: Session, *, kept: int) -> None:
    """Delete all but the newest events, `kept` ids, and those that are spared. The last one to go leaves its id."""
    old = (EventRow.id <= bounds(session)[1] - kept) & EventRow.kind.not_in([kind.value for kind in SPARED])
    last = session.scalar(select(func.max(EventRow.id)).where(old))
    if last is None or last == bounds(session)[0] - 1:  # which stands there already, before spared ones
        return
    session.execute(delete(EventRow).where(old, EventRow.id < last))
    gone = {"job_id": _NOBODY, "project": _NOBODY, "kind": EventKind.GAP.value, "data": {}}
    session.execute(update(EventRow).where(EventRow.id == last).values(gone))


# -- reading --------------------------------------------------------------------------------------------------


def bounds(session: Session, kinds: Collection[EventKind] = ()) -> tuple[int, int]:
    """Return two ids: from the first on no event of `kinds` (none: of any) was pruned, and the second is the newest's.

    0 and 0: there is no event.
    """
    oldest, newest = session.execute(select(func.min(EventRow.id), func.max(EventRow.id))).one()
    if kinds and SPARED.issuperset(kinds):
        return oldest or 0, newest or 0
    gone = session.scalar(select(func.max(EventRow.id)).where(EventRow.job_id == _NOBODY))
    return max(oldest or 0, 0 if gone is None else gone + 1), newest or 0


def is_gap(session: Session, after: int, kinds: Collection[EventKind] = ()) -> bool:
    """Return whether events of the kinds, by default all, are gone after this id, or the id was never given."""
    oldest, newest = bounds(session, kinds)
    return not max(0, oldest - 1) <= after <= newest


def newest_of(session: Session, job_id: str) -> int:
    """Return the id of the job's newest event; 0: it has none."""
    return session.scalar(select(func.max(EventRow.id)).where(EventRow.job_id == job_id)) or 0


def after(
    session: Session,
    cursor: int,
    *,
    limit: int,
    project: str | None = None,
    job_id: str | None = None,
    kinds: Collection[EventKind] = (),
) -> tuple[Sequence[EventRow], int]:
    """Return up to `limit` events behind `cursor`, oldest first, and where to go on.

    A cursor that was never given, as after an older backup was restored, is before all of them.
    """
    newest = bounds(session)[1]
    cursor = cursor if cursor <= newest else 0
    query = select(EventRow).where(EventRow.id > cursor, EventRow.job_id != _NOBODY)
    if project is not None:
        query = query.where(EventRow.project == project)
    if job_id is not None:
        query = query.where(EventRow.job_id == job_id)
    if kinds:
        query = query.where(EventRow.kind.in_([kind.value for kind in kinds]))
    rows = session.scalars(query.order_by(EventRow.id).limit(limit)).all()
    return rows, rows[-1].id if len(rows) == limit else max(cursor, newest)
