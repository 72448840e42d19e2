"""The lines of a log: text for people, or JSON with the ids of the request, job, attempt and trial they tell of."""

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

#: Drivers, trials and workers read their format here; the service has it in its settings.
VARIABLE = "WIRETUNE_LOG_FORMAT"
#: They log each request, and each table.
_WORDY = ("httpx2", "httpcore2", "ray")

_fields: ContextVar[Mapping[str, Any]] = ContextVar("wiretune_log_fields", default=MappingProxyType({}))


class LogFormat(StrEnum):
    """The format of a log."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The least level of the service's own lines in its log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@contextmanager
def log_fields(**fields: Any) -> Iterator[None]:
    """Give `fields` to every line that the block logs; threads that it starts do not have them."""
    token = _fields.set({**_fields.get(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


def log_field(name: str) -> Any:
    """Return a field of the lines that are logged here and now; None: they have none of that name."""
    return _fields.get().get(name)


class JsonLines(logging.Formatter):
    """Formats a record as a JSON object on one line.

    Args:
        of_process: fields of every line of this process, in all its threads.
    """

    def __init__(self, of_process: Mapping[str, Any]) -> None:
        super().__init__()
        self._of_process = dict(of_process)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
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
    """Have this process log in `log_format`, to standard error unless there are `handlers`.

    Args:
        text: the format of a line for people, as `logging` has them.
        of_process: fields of every line in JSON.
    """
    logging.basicConfig(format=text, handlers=handlers, level=level)
    if log_format is LogFormat.JSON:
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonLines(of_process or {}))
    for name in _WORDY:
        logging.getLogger(name).setLevel(logging.WARNING)


def of_environment() -> LogFormat:
    """Return the format that the reconciler named in this process's environment."""
    return LogFormat(os.environ.get(VARIABLE, LogFormat.TEXT))
