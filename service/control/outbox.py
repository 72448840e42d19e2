"""The messages that wait to be sent: claim those that are due, and record what became of them."""

from collections.abc import Collection
from functools import partial

from service.control import messages
from service.control.database.session import Database
from service.control.messages import Message


class Outbox:
    """Messages about jobs, for the one who sends them. Thread-safe; available as `Store.outbox`."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def due(self, *, but: Collection[str] = (), most: int = messages.AT_ONCE) -> list[Message]:
        """Return `most` due messages of owners that are not in `but`. One without `note` becomes due again later."""
        now = self._db.now()
        with self._db.reading() as session:
            if not messages.are_due(session, now=now):
                return []
        return self._db.write(partial(messages.claim, now=now, but=but, most=most))

    def note(self, message_id: str, *, fault: str, is_final: bool) -> bool:
        """Record the outcome of a message; `fault` "" means delivered. Return whether it is sent again."""
        return self._db.write(partial(messages.note, message_id=message_id, fault=fault, is_final=is_final))
