"""State that an attempt's driver shares with the processes of its trials."""

import logging
import os
import re
from typing import Any

from service import log_lines, tracing
from service.wire.records import AttemptBrief, Control, ResumePoint

#: Python begins an error's line so; what these say is for people as it is.
_OUR_ERRORS = re.compile(rf"^{re.escape(__name__)}\.(Hopeless|NoPlace): ")
_PYDANTICS_LAST = "For further information visit"


class Hopeless(Exception):
    """A trial failed as it would fail again: the job ends with it. The message is the job's reason."""


class NoPlace(Exception):
    """There was no place for a worker: none within `workers.patience_s`, or its machine is not fit."""


def configure_process(name: str, **fields: Any) -> None:
    """Have this process log to its output, which the attempt's log collects, and send traces where that is wanted.

    Args:
        name: of the process, in traces.
        fields: ids beside those of the job and the attempt, in logs.
    """
    of_process = {"job": os.environ.get("WIRETUNE_JOB"), "attempt": os.environ.get("WIRETUNE_ATTEMPT"), **fields}
    text = "%(asctime)s %(name)s %(levelname)s %(message)s"
    log_lines.configure(log_lines.of_environment(), text, level=logging.INFO, of_process=of_process)
    try:
        tracing.configure(name)
    except ImportError as error:
        logging.getLogger("wiretune.driver").warning("%s", error)


def is_wanted(brief: AttemptBrief, point: ResumePoint) -> bool:
    """Return whether the trial is to be trained, or brought to its end: of a stopped job, those that began."""
    begun = brief.control is Control.STOP and point.resume is not None
    return not point.finished and (brief.control is Control.RUN or begun)


def last_line(error: BaseException) -> str:
    """Return what an error says in one line, for a job's reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and _PYDANTICS_LAST not in line]
    last = lines[-1] if lines else repr(error)
    return _OUR_ERRORS.sub("", last)[:500]
