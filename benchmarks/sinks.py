"""Sinks for trials that a benchmark trains by itself, without a service."""

from typing import Any

from search.types import Steer
from service.wire.records import AnyRecord, Control


class Unasked:
    """A sink that keeps nothing, and whose run nobody pauses, stops or steers."""

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


class Memory(Unasked):
    """A sink that keeps what is reported."""

    def __init__(self) -> None:
        self.records: list[AnyRecord] = []

    def report(self, *records: AnyRecord) -> None:
        self.records.extend(records)

    def of(self, kind: type) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]
