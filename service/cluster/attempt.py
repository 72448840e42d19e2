"""State that an attempt's driver shares with the processes of its trials."""

import logging
import re

from service.wire.records import AttemptBrief, Control, ResumePoint

#: Python begins an error's line so; what these say is for people as it is.
_OUR_ERRORS = re.compile(rf"^{re.escape(__name__)}\.(Hopeless|NoPlace): ")
_PYDANTICS_LAST = "For further information visit"


class Hopeless(Exception):
    """A trial failed as it would fail again: the job ends with it. The message is the job's reason."""


class NoPlace(Exception):
    """There was no room for a worker for `workers.patience_s`: its machine is gone, and no other has room."""


def configure_logging() -> None:
    """Log what this process does to its output, which the attempt's log collects."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    for name in ("httpx2", "ray"):  # they tell of every request, and of every table
        logging.getLogger(name).setLevel(logging.WARNING)


def is_wanted(brief: AttemptBrief, point: ResumePoint) -> bool:
    """Return whether the trial is to be trained, or brought to its end: of a stopped job, those that began."""
    begun = brief.control is Control.STOP and point.resume is not None
    return not point.finished and (brief.control is Control.RUN or begun)


def last_line(error: BaseException) -> str:
    """Return what an error says in one line, for a job's reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and _PYDANTICS_LAST not in line]
    last = lines[-1] if lines else repr(error)
    return _OUR_ERRORS.sub("", last)[:500]
