"""Messages that a job has ended, stored in the transaction that ends it. Functions of one open transaction.

A message therefore survives a restart, and `service.control.webhooks` sends it at least once.
"""

import json
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session, object_session

from service.control import events
from service.control.models import JobRow, MessageRow
from service.wire.events import EventKind

MAX_TRIES = 7
#: The wait after the first try. Each later wait is four times as long, so the last try is 11 hours later.
BACK_OFF_S = 30.0
_AT_ONCE = 20
#: Messages to one host before other hosts have their turn, so that a host that does not answer delays no other.
_OF_ONE_HOST = 3


class Message(NamedTuple):
    """A message that is due."""

    id: str
    url: str
    body: str


def add(job: JobRow, *, now: float) -> None:
    """Store the message that `job` has ended, if the job has a webhook."""
    webhook = job.spec.get("webhook")
    session = object_session(job)
    if webhook is None or session is None:
        return
    data = {"job_id": job.id, "name": job.name, "state": job.state, "reason": job.reason, "version": job.version}
    body = {"type": f"job.{job.state}", "timestamp": datetime.fromtimestamp(now, UTC).isoformat(), "data": data}
    message_id = f"msg_{job.id}_{job.version}"
    session.add(MessageRow(id=message_id, job_id=job.id, url=webhook["url"], body=json.dumps(body), next_at=now))


def are_due(session: Session, *, now: float) -> bool:
    """Return whether any message is due."""
    return session.scalar(select(MessageRow.id).where(MessageRow.next_at <= now).limit(1)) is not None


def claim(session: Session, *, now: float) -> list[Message]:
    """Return due messages, and schedule each one's next try in case this one is lost."""
    is_due = MessageRow.next_at <= now
    found = session.execute(select(MessageRow.id, MessageRow.url).where(is_due).order_by(MessageRow.next_at))
    chosen = select(MessageRow).where(MessageRow.id.in_(_of_a_round(found)), is_due)
    rows = session.scalars(chosen.order_by(MessageRow.next_at).with_for_update(skip_locked=True)).all()
    for row in rows:
        row.tries += 1
        row.next_at = now + BACK_OFF_S * 4 ** (row.tries - 1)
    return [Message(row.id, row.url, row.body) for row in rows]


def _of_a_round(due: Iterable[tuple[str, str]]) -> list[str]:
    """Choose the ids to send now from pairs of an id and a URL, the oldest first."""
    of_host: Counter[str] = Counter()
    first: list[str] = []
    others: list[str] = []
    for message_id, url in due:
        host = "/".join(url.split("/", 3)[:3])
        of_host[host] += 1
        (first if of_host[host] <= _OF_ONE_HOST else others).append(message_id)
    return [*first, *others][:_AT_ONCE]


def note(session: Session, message_id: str, *, fault: str, is_final: bool) -> bool:
    """Record the outcome of a try; `fault` "" means delivered. Return whether another try follows."""
    row = session.get(MessageRow, message_id)
    if row is None:  # gone with its job
        return False
    row.fault = fault
    if fault and not is_final and row.tries < MAX_TRIES:
        return True
    row.next_at = None
    outcome = "failed" if fault else "delivered"
    events.tell(row, EventKind.WEBHOOK, outcome=outcome, tries=row.tries, reason=fault)
    return False
