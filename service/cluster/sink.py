"""The way out of a training run: where its records go, and what its user asks of it."""

from typing import Any, Protocol

from search.types import Steer
from service.wire.records import AnyRecord, Control


class Sink(Protocol):
    """A sink of records, for any thread. `flush` waits until they are stored. Both methods raise what ends the run."""

    def report(self, *records: AnyRecord) -> None: ...
    def flush(self, *records: AnyRecord) -> None: ...
    def is_clear(self) -> bool:
        """Return whether the last record that a later attempt resumes from is stored, so that the next may follow."""

    def asked(self) -> Control:
        """Return the user's last known request to the run: `run`, `pause` or `stop`."""

    def steers(self) -> tuple[Steer, ...]:
        """Return the steers in force, as of the last stored record."""


class UnaskedSink:
    """A sink that keeps nothing, of a run that nobody pauses, stops or steers."""

    def report(self, *records: AnyRecord) -> None:
        pass

    def flush(self, *records: AnyRecord) -> None:
        self.report(*records)

    def is_clear(self) -> bool:
        return True

    def asked(self) -> Control:
        return Control.RUN

    def steers(self) -> tuple[Steer, ...]:
        return ()


class MemorySink(UnaskedSink):
    """A sink that keeps the records, whichever thread they come from."""

    def __init__(self) -> None:
        self.records: list[AnyRecord] = []

    def report(self, *records: AnyRecord) -> None:
        self.records.extend(records)

    def of(self, *kinds: type) -> list[Any]:
        return [record for record in self.records if isinstance(record, kinds)]
