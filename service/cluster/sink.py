"""The way out of a training run: where its records go, and what its user asks of it."""

from typing import Protocol

from search.types import Steer
from service.wire.records import AnyRecord, Control


class Sink(Protocol):
    """A sink of records, for any thread. `flush` waits until they are stored. Both methods raise what ends the run."""

    def report(self, *records: AnyRecord) -> None: ...
    def flush(self, *records: AnyRecord) -> None: ...
    def is_clear(self) -> bool:
        """Return whether the last reported checkpoint is stored, so that the next may follow."""

    def asked(self) -> Control:
        """Return the user's last known request to the run: `run`, `pause` or `stop`."""

    def steers(self) -> tuple[Steer, ...]:
        """Return the steers in force, as of the last stored record."""
