"""Events: changes of jobs, stored in the transaction that made them, and read in commit order.

Readers follow ids, so an event must never appear after one with a higher id. SQLite has one writer. On PostgreSQL,
transactions of several replicas overlap, and could commit their ids in any order. A transaction therefore stores
its events last, and holds a lock shared by all replicas from the first event to its commit.
"""

import threading
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.orm import Session, object_session

from service.control.models import EventRow, JobRow, MessageRow, TrialRow
from service.wire.events import EventKind

#: The number of newest events that stay. A reader that was away for longer finds a gap.
KEPT_EVENTS = 100_000
#: Kinds of events that stay as long as their job: timelines are drawn from them, and there are few.
SPARED = frozenset({EventKind.JOB, EventKind.REPAIR})
_LOCK = 8471  # any number that all releases share, other than that of migrations
_MAX_TEXT = 500
_NOBODY = ""  # the job id of the one row that stands for pruned events
_EVENTS = insert(EventRow)


class _Told(NamedTuple):
    job_id: str
    project: str
    kind: EventKind
    data: dict[str, Any]


class Bell:
    """Wakes threads that wait for events stored by this process. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.num_rings = 0

    def ring(self) -> None:
        """Wake all waiting threads."""
        with self._changed:
            self.num_rings += 1
            self._changed.notify_all()

    def wait(self, num_rings: int, *, timeout_s: float) -> None:
        """Wait until the bell has rung more than `num_rings` times, for `timeout_s` at most."""
        with self._changed:
            self._changed.wait_for(lambda: self.num_rings > num_rings, timeout_s)


# -- writing --------------------------------------------------------------------------------------------------


def tell(row: JobRow | MessageRow | TrialRow, kind: EventKind, *, within: Session | None = None, **data: Any) -> None:
    """Add an event to the row's transaction, or that of `within`, to be stored at its commit. Long texts are cut."""
    session = within or object_session(row)
    assert session is not None
    job = row if isinstance(row, JobRow) else session.get_one(JobRow, row.job_id)
    short = {name: value[:_MAX_TEXT] if isinstance(value, str) else value for name, value in data.items()}
    _waiting(session).append(_Told(job.id, job.project, kind, short))


def tell_progress(trial: TrialRow, *, first_step: int | None = None, loss: float | None = None) -> None:
    """Add a progress event; `first_step` is the lowest step of new points. A transaction merges them into one."""
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
    """Return the number of events that wait for the commit."""
    return len(_waiting(session))


def take_back(session: Session, num_kept: int) -> None:
    """Drop the events after the first `num_kept`, when a part of the transaction is undone."""
    del _waiting(session)[num_kept:]


def store(session: Session, *, now: float) -> None:
    """Store the waiting events. The caller must commit next without waiting, as it may hold up other replicas."""
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
    """Return the events, with each trial's progress merged into its last progress event."""
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
    """Delete a job's events."""
    session.execute(delete(EventRow).where(EventRow.job_id == job_id))


def prune(session: Session, *, kept: int) -> None:
    """Delete all events except the newest `kept` ids and spared kinds. The last pruned one leaves its id as a mark."""
    old = (EventRow.id <= bounds(session)[1] - kept) & EventRow.kind.not_in([kind.value for kind in SPARED])
    last = session.scalar(select(func.max(EventRow.id)).where(old))
    if last is None or last == bounds(session)[0] - 1:  # the marker stands there already, before spared events
        return
    session.execute(delete(EventRow).where(old, EventRow.id < last))
    gone = {"job_id": _NOBODY, "project": _NOBODY, "kind": EventKind.GAP.value, "data": {}}
    session.execute(update(EventRow).where(EventRow.id == last).values(gone))


# -- reading --------------------------------------------------------------------------------------------------


def bounds(session: Session, kinds: Collection[EventKind] = ()) -> tuple[int, int]:
    """Return the first id from which on no event of `kinds` (default: any) was pruned, and the newest event's id.

    Both are 0 if there is no event.
    """
    # In one select, SQLite would read every id instead of the two ends of the index.
    ends = (select(end(EventRow.id)).scalar_subquery() for end in (func.min, func.max))
    oldest, newest = session.execute(select(*ends)).one()
    if kinds and SPARED.issuperset(kinds):
        return oldest or 0, newest or 0
    gone = session.scalar(select(func.max(EventRow.id)).where(EventRow.job_id == _NOBODY))
    return max(oldest or 0, 0 if gone is None else gone + 1), newest or 0


def is_gap(session: Session, after: int, kinds: Collection[EventKind] = ()) -> bool:
    """Return whether events of `kinds` (default: any) after this id were pruned, or the id was never given out."""
    return is_outside(after, bounds(session, kinds))


def is_outside(after: int, kept: tuple[int, int]) -> bool:
    """Return whether events after this id are missing within the bounds that are `kept`."""
    oldest, newest = kept
    return not max(0, oldest - 1) <= after <= newest


def newest_of(session: Session, job_id: str, kinds: Collection[EventKind] = ()) -> int:
    """Return the id of the job's newest event of these kinds (empty: of any); 0 if it has none."""
    newest = select(EventRow.id).where(EventRow.job_id == job_id).order_by(EventRow.id.desc()).limit(1)
    return session.scalar(newest.where(EventRow.kind.in_(kinds)) if kinds else newest) or 0


def after(
    session: Session,
    cursor: int,
    *,
    limit: int,
    project: str | None = None,
    job_id: str | None = None,
    kinds: Collection[EventKind] = (),
) -> tuple[Sequence[EventRow], int]:
    """Return up to `limit` events after `cursor`, oldest first, and the next cursor.

    A cursor that was never given out, as after an older backup was restored, counts as 0. Events of kinds that only a
    later release knows are left out.
    """
    newest = bounds(session)[1]
    cursor = cursor if cursor <= newest else 0
    query = select(EventRow).where(EventRow.id > cursor, EventRow.job_id != _NOBODY)
    if project is not None:
        query = query.where(EventRow.project == project)
    if job_id is not None:
        query = query.where(EventRow.job_id == job_id)
    query = query.where(EventRow.kind.in_([kind.value for kind in kinds or EventKind]))
    rows = session.scalars(query.order_by(EventRow.id).limit(limit)).all()
    return rows, rows[-1].id if len(rows) == limit else max(cursor, newest)
