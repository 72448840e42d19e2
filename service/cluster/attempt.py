"""Helpers that an attempt's driver shares with the processes of its trials."""

import logging
import os
import re
from typing import Any

from service import log_lines, tracing
from service.wire.records import AttemptBrief, Control, ResumePoint

#: The prefix that Python puts before these errors. Their messages are written for people, so it is removed.
_OUR_ERRORS = re.compile(rf"^{re.escape(__name__)}\.(Hopeless|NoPlace|LostTouch): ")
_PYDANTICS_LAST = "For further information visit"


class Hopeless(Exception):
    """A trial failed in a way that a retry would repeat, which ends the job. The message is the job's reason."""


class NoPlace(Exception):
    """No machine for a worker was found within `workers.patience_s`, or its machine is unfit."""


class LostTouch(Exception):
    """A trial was fenced, or cannot hear the API. This ends the attempt, and the next one resumes every trial."""


def configure_process(name: str, **fields: Any) -> None:
    """Configure logging to this process's output, which the attempt's log collects, and traces if they are on.

    Args:
        name: the name of the process in traces.
        fields: ids for log lines, besides those of the job and the attempt.
    """
    of_process = {"job": os.environ.get("WIRETUNE_JOB"), "attempt": os.environ.get("WIRETUNE_ATTEMPT"), **fields}
    text = "%(asctime)s %(name)s %(levelname)s %(message)s"
    log_lines.configure(log_lines.of_environment(), text, level=logging.INFO, of_process=of_process)
    try:
        tracing.configure(name)
    except ImportError as error:
        logging.getLogger("wiretune.driver").warning("%s", error)


def is_wanted(brief: AttemptBrief, point: ResumePoint) -> bool:
    """Return whether to train the trial. One that was stopped, alone or with its job, must have begun: it is ended."""
    if point.finished or brief.control not in (Control.RUN, Control.STOP):
        return False
    is_stopped = point.stopped or brief.control is Control.STOP
    return point.resume is not None or not is_stopped


def last_line(error: BaseException) -> str:
    """Return an error's last line, for a job's reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and _PYDANTICS_LAST not in line]
    last = lines[-1] if lines else repr(error)
    return _OUR_ERRORS.sub("", last)[:500]
