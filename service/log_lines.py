"""Log formatting: text for people, or JSON with the ids of the request, job, attempt and trial."""

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from service import tracing

#: Drivers, trials and workers read their log format from this variable; the service reads its settings.
VARIABLE = "WIRETUNE_LOG_FORMAT"
#: These loggers report each request, and each table.
_WORDY = ("httpx2", "httpcore2", "ray")

_fields: ContextVar[Mapping[str, Any]] = ContextVar("wiretune_log_fields", default=MappingProxyType({}))


class LogFormat(StrEnum):
    """A log format."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The lowest level at which the service logs its own lines."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@contextmanager
def log_fields(**fields: Any) -> Iterator[None]:
    """Add `fields` to every line that the block logs. Threads started in the block do not inherit them."""
    token = _fields.set({**_fields.get(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


def log_field(name: str) -> Any:
    """Return the value of a field in the current logging context, or None if it is not set."""
    return _fields.get().get(name)


class JsonLines(logging.Formatter):
    """Format a record as a JSON object on one line.

    Args:
        of_process: fields added to every line of this process, in all threads.
    """

    def __init__(self, of_process: Mapping[str, Any]) -> None:
        super().__init__()
        self._of_process = dict(of_process)

    def format(self, record: logging.LogRecord) -> str:
        """Format the record."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._of_process,
            **_fields.get(),
            **tracing.ids(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(
    log_format: LogFormat,
    text: str,
    *,
    handlers: Sequence[logging.Handler] | None = None,
    level: int = logging.WARNING,
    of_process: Mapping[str, Any] | None = None,
) -> None:
    """Configure logging of this process in `log_format`, to standard error unless `handlers` are given.

    Args:
        text: the format string for text lines, in the style of `logging`.
        of_process: fields added to every JSON line.
    """
    logging.basicConfig(format=text, handlers=handlers, level=level)
    if log_format is LogFormat.JSON:
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonLines(of_process or {}))
    for name in _WORDY:
        logging.getLogger(name).setLevel(logging.WARNING)


def of_environment() -> LogFormat:
    """Return the log format that the reconciler set in this process's environment."""
    return LogFormat(os.environ.get(VARIABLE, LogFormat.TEXT))
