"""Messages about jobs, stored in the transaction that they tell of. Functions of one open transaction.

A message therefore survives a restart, and `service.control.webhooks` sends it at least once.
"""

import html
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import chain, islice, zip_longest
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, case, or_, select
from sqlalchemy.orm import Session, object_session

from service.control import events
from service.control.models import JobRow, MessageRow
from service.job.states import ENDS, Occasion
from service.wire.events import EventKind

#: The URL of messages to the operator's webhook. Its address is in the settings alone, since it may hold a secret.
OPERATORS = ""
#: The name, in a session's `info`, of the occasions that the operator's webhook is told of.
OPERATOR_ON = "operator_on"
MAX_TRIES = 7
#: The wait after the first try. Each later wait is four times as long, so the last try is 11 hours later.
BACK_OFF_S = 30.0
#: The most messages that are sent in one round.
AT_ONCE = 20
_SKEW_S = 60.0  # the clocks of two replicas differ by less


class Message(NamedTuple):
    """A message that is due."""

    id: str
    url: str
    body: str
    owner: str


def add(job: JobRow, occasion: Occasion, *, reason: str, now: float) -> None:
    """Store a message about `job` for each webhook that is told of the `occasion`: its own, and the operator's."""
    session = object_session(job)
    if session is None:
        return
    webhook = job.spec.get("webhook") or {"url": "", "on": ()}
    urls = [webhook["url"]] if occasion in webhook.get("on", ENDS) else []  # earlier releases stored no `on`
    if occasion in session.info.get(OPERATOR_ON, ()):
        urls.append(OPERATORS)
    name = f"msg_{job.id}_{job.version}_{occasion}"
    body = json.dumps(_body(job, occasion, reason=reason, now=now))
    for url in urls:
        message_id = f"{name}_operator" if url == OPERATORS else name
        session.add(MessageRow(id=message_id, job_id=job.id, url=url, body=body, next_at=now))


def _body(job: JobRow, occasion: Occasion, *, reason: str, now: float) -> dict[str, Any]:
    data = {"job_id": job.id, "name": job.name, "state": job.state, "reason": reason, "version": job.version}
    if occasion is Occasion.ATTEMPT_LOST:
        data["attempt"] = job.attempt
    said = {Occasion.CANCELLED: "was cancelled", Occasion.ATTEMPT_LOST: f"lost attempt {job.attempt}"}
    text = f"job {job.name} {said.get(occasion, occasion)}{f': {reason}' if reason else ''}"
    return {
        "type": f"job.{occasion}",
        "timestamp": datetime.fromtimestamp(now, UTC).isoformat(),
        # For a chat. Unescaped, `<!channel>` in a name would call everybody in Slack, and `<URL|TEXT>` hide a link.
        "text": html.escape(text, quote=False),
        "data": data,
    }


def are_due(session: Session, *, now: float) -> bool:
    """Return whether any message is due."""
    return session.scalar(select(MessageRow.id).where(_is_due(now)).limit(1)) is not None


def claim(session: Session, *, now: float, but: Collection[str], most: int) -> list[Message]:
    """Return `most` due messages of owners that are not in `but`, and schedule each one's next try.

    The next try is in case this one is lost.
    """
    is_due = _is_due(now)
    waiting = select(MessageRow.id, MessageRow.url, JobRow.owner).join(JobRow, JobRow.id == MessageRow.job_id)
    found = session.execute(waiting.where(is_due).order_by(MessageRow.next_at))
    owners = {message_id: (url, OPERATORS if url == OPERATORS else owner) for message_id, url, owner in found}
    chosen = select(MessageRow).where(MessageRow.id.in_(_of_a_round(owners, but=but, most=most)), is_due)
    rows = session.scalars(chosen.order_by(MessageRow.next_at).with_for_update(skip_locked=True)).all()
    for row in rows:
        row.tries += 1
        row.next_at = now + _wait_s(row.tries)
    return [Message(row.id, row.url, row.body, owners[row.id][1]) for row in rows]


def _is_due(now: float) -> ColumnElement[bool]:
    """Return the condition that a message is due.

    A try that is further ahead than the wait after as many tries is due, too: the clock was set back since.
    """
    ahead = MessageRow.next_at - now
    waits = {tries: _wait_s(tries) + _SKEW_S for tries in range(MAX_TRIES)}
    longest = case(waits, value=MessageRow.tries, else_=_wait_s(MAX_TRIES) + _SKEW_S)
    return and_(MessageRow.next_at > 0.0, or_(ahead <= 0.0, ahead >= longest))  # the first is for the index


def _wait_s(tries: int) -> float:
    """Return the wait after that many tries. A new message is due at once."""
    return BACK_OFF_S * 4 ** (tries - 1) if tries else 0.0


def _of_a_round(due: Mapping[str, tuple[str, str]], *, but: Collection[str], most: int) -> list[str]:
    """Choose the ids to send now from ids with their URLs and owners, the oldest first, without owners in `but`.

    Owners take turns, and so do the hosts of each: one that does not answer delays no other. Hosts alone would not do,
    as one domain can have any number of them.
    """
    of_owner: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for message_id, (url, owner) in due.items():
        if owner not in but:
            of_owner[owner]["/".join(url.split("/", 3)[:3])].append(message_id)
    return list(islice(_in_turn(_in_turn(hosts.values()) for hosts in of_owner.values()), most))


def _in_turn(lists: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the first element of each list, then the second of each, and so on."""
    return (each for each in chain.from_iterable(zip_longest(*lists)) if each is not None)


def note(session: Session, message_id: str, *, fault: str, is_final: bool) -> bool:
    """Record the outcome of a try; `fault` "" means delivered. Return whether another try follows."""
    row = session.get(MessageRow, message_id)
    if row is None:  # gone with its job
        return False
    row.fault = fault
    if fault and not is_final and row.tries < MAX_TRIES:
        return True
    row.next_at = None
    if row.url == OPERATORS:  # its users neither know nor need it
        return False
    outcome = "failed" if fault else "delivered"
    events.tell(row, EventKind.WEBHOOK, outcome=outcome, tries=row.tries, reason=fault)
    return False
