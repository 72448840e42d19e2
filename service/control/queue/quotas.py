"""Quotas and the past use of projects, as stored in the database."""

import math
from collections.abc import Collection

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.control.access import audit
from service.control.access.rules import Principal
from service.control.database import rows
from service.control.database.session import Database
from service.control.models import JobRow, QuotaRow, UsageRow
from service.control.moments import moment
from service.control.queue.capacity import Size
from service.control.queue.order import HALF_LIFE_S
from service.control.queue.queued import QuotaKey, Quotas
from service.control.queue.quota_limits import keys_of, limits_of
from service.errors import NotFound, QueueFull
from service.job.states import JobState
from service.wire.queue import QuotaKind, QuotaLimits, QuotaView

_KNOWN_S = 1.0
_LOCK = 8473  # any number that every release agrees on, other than those of events, migrations and starts of jobs
_LIMITS = tuple(QuotaLimits.model_fields)


def limits(session: Session) -> dict[QuotaKey, QuotaLimits]:
    """Return all quotas, by owner or project."""
    return {(QuotaKind(row.kind), row.name): _limits(row) for row in session.scalars(select(QuotaRow))}


def _limits(row: QuotaRow) -> QuotaLimits:
    return QuotaLimits(**{name: getattr(row, name) for name in _LIMITS})


def require_place(session: Session, quotas: Quotas, *, by: Principal) -> None:
    """Raise QueueFull if as many jobs of `by`, or of its project, wait as their quotas allow."""
    for key, column in zip(keys_of(by.name, by.project), (JobRow.owner, JobRow.project), strict=True):
        (kind, name), allowed = key, limits_of(quotas, *key).waiting
        if allowed is None:
            continue
        if session.get_bind().dialect.name == "postgresql":  # until the commit no other replica counts
            session.execute(select(func.pg_advisory_xact_lock(_LOCK)))
        rows.store(session)  # jobs of the same group
        waiting = select(func.count()).where(JobRow.state == JobState.QUEUED.value, column == name)
        if (session.scalar(waiting) or 0) >= allowed:
            raise QueueFull(
                f"{kind} {name} has as many waiting jobs as its quota allows, {allowed}: try again when one has "
                "started, cancel one, or ask an operator for more (`wiretune quota set --waiting`)"
            )


def recent(session: Session, *, now: float) -> dict[str, Size]:
    """Return the mean use of each project's ended attempts; see `HALF_LIFE_S`."""
    rate = math.log(2) / HALF_LIFE_S
    found = {}
    for row in session.scalars(select(UsageRow)):
        left = rate * _left(now - row.at)
        found[row.project] = Size(row.cpu_s * left, row.gpu_s * left)
    return found


def charge(session: Session, project: str, size: Size, *, began_at: float, now: float) -> None:
    """Add an attempt's use, from its start until now, to its project's past use."""
    row = session.get(UsageRow, project, with_for_update=True)
    if row is None:
        row = UsageRow(project=project, cpu_s=0.0, gpu_s=0.0, at=now)
        session.add(row)
    seconds = (1.0 - _left(now - began_at)) * HALF_LIFE_S / math.log(2)  # later seconds count more
    left = _left(now - row.at)
    row.cpu_s, row.gpu_s = row.cpu_s * left + size.cpus * seconds, row.gpu_s * left + size.gpus * seconds
    row.at = max(now, row.at)


def _left(seconds: float) -> float:
    return float(0.5 ** (max(0.0, seconds) / HALF_LIFE_S))


class QuotaBook:
    """Sets, lists and removes quotas. Thread-safe."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._known, self._known_at = dict[QuotaKey, QuotaLimits](), -math.inf

    def limits(self) -> dict[QuotaKey, QuotaLimits]:
        """Return all quotas, by owner or project. A change by another replica appears within a second."""
        # Cached, as each submission calls this and quotas rarely change. The clock may be set back.
        if abs(self._db.now() - self._known_at) >= _KNOWN_S:
            with self._db.reading() as session:
                self._known = limits(session)
            self._known_at = self._db.now()
        return self._known

    def list(self) -> tuple[QuotaView, ...]:
        """Return all quotas, owners' before projects'."""
        with self._db.reading() as session:
            rows = session.scalars(select(QuotaRow).order_by(QuotaRow.kind, QuotaRow.name))
            return tuple(_view(row) for row in rows)

    def set(self, kind: QuotaKind, name: str, wanted: QuotaLimits, *, by: Principal) -> QuotaView:
        """Set a quota, in place of any earlier one."""
        return self._put(kind, name, wanted, _LIMITS, by=by, action="setQuota")

    def edit(self, kind: QuotaKind, name: str, patch: QuotaLimits, *, by: Principal) -> QuotaView:
        """Change the fields of a quota that `patch` names. If there is no quota, the others have their defaults."""
        return self._put(kind, name, patch, patch.model_fields_set, by=by, action="updateQuota")

    def _put(
        self, kind: QuotaKind, name: str, wanted: QuotaLimits, fields: Collection[str], *, by: Principal, action: str
    ) -> QuotaView:
        def put(session: Session) -> QuotaView:
            now = self._db.now()
            row = session.get(QuotaRow, (kind.value, name), with_for_update=True)
            if row is None:
                row = QuotaRow(kind=kind.value, name=name, **QuotaLimits().model_dump())
                session.add(row)
            for field in fields:
                setattr(row, field, getattr(wanted, field))
            row.set_by, row.set_at = by.name, now
            audit.add(session, by, action, f"{kind} {name}", now=now)
            return _view(row)

        view = self._db.write(put)
        self._known_at = -math.inf
        return view

    def remove(self, kind: QuotaKind, name: str, *, by: Principal) -> None:
        """Remove a quota; raises NotFound."""

        def remove(session: Session) -> None:
            row = session.get(QuotaRow, (kind.value, name))
            if row is None:
                raise NotFound(f"there is no quota of {kind} `{name}`")
            session.delete(row)
            audit.add(session, by, "deleteQuota", f"{kind} {name}", now=self._db.now())

        self._db.write(remove)
        self._known_at = -math.inf


def _view(row: QuotaRow) -> QuotaView:
    return QuotaView(
        kind=QuotaKind(row.kind),
        name=row.name,
        set_by=row.set_by,
        set_at=moment(row.set_at),
        **_limits(row).model_dump(),
    )
