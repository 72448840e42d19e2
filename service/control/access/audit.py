"""The audit log: who changed what, from where. Functions of one open session; no secret is ever written."""

from dataclasses import dataclass

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from service.control.access.rules import Principal
from service.control.database import rows
from service.control.models import AuditRow
from service.control.moments import moment
from service.wire.access import AuditEntry, AuditPage

DONE, REFUSED = "done", "refused"
_ENTRIES = insert(AuditRow)


def add(session: Session, by: Principal, action: str, target: str, *, now: float, outcome: str = DONE) -> None:
    """Write down what `by` did, in the transaction that does it."""
    entry = {
        "at": now, "name": by.name, "key_id": by.key_id, "address": by.address, "action": action, "target": target,
        "outcome": outcome,
    }  # fmt: skip
    rows.add(session, _ENTRIES, entry)


@dataclass(frozen=True, kw_only=True)
class AuditFilter:
    """The entries that are asked for: those to which all of it applies."""

    name: str | None = None
    action: str | None = None
    target: str | None = None
    outcome: str | None = None


#: All of them.
EVERY_ENTRY = AuditFilter()


def page(session: Session, where: AuditFilter, *, limit: int, cursor: int | None) -> AuditPage:
    """Return up to `limit` entries, newest first, from behind `cursor`."""
    query = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit + 1)
    query = query.filter_by(**{field: value for field, value in vars(where).items() if value is not None})
    if cursor is not None:
        query = query.where(AuditRow.id < cursor)
    rows = session.scalars(query).all()
    following = rows[limit - 1].id if len(rows) > limit else None
    return AuditPage(entries=tuple(_entry(row) for row in rows[:limit]), next_cursor=following)


def is_older(session: Session, *, than: float) -> bool:
    """Return whether there is an entry for `forget` to delete."""
    oldest = session.scalar(select(AuditRow.at).order_by(AuditRow.id).limit(1))
    return oldest is not None and oldest < than


def forget(session: Session, *, before: float) -> None:
    """Delete the entries from before that moment."""
    # Ids are in order of arrival: none of the entries that stay is looked at, but the first.
    first = session.scalar(select(AuditRow.id).where(AuditRow.at >= before).order_by(AuditRow.id).limit(1))
    session.execute(delete(AuditRow).where(AuditRow.at < before if first is None else AuditRow.id < first))


def _entry(row: AuditRow) -> AuditEntry:
    return AuditEntry(
        id=row.id,
        at=moment(row.at),
        name=row.name,
        key=row.key_id,
        address=row.address,
        action=row.action,
        target=row.target,
        outcome=row.outcome,
    )
