"""The reconciler's effects on a job: set its reason, end its attempt as lost, or fail it."""

import logging
from contextlib import suppress

from service.control.queue.queued import Waiting
from service.control.store import Store
from service.control.work import Work
from service.errors import NotFound
from service.job.states import JobState
from service.log_lines import log_fields

_log = logging.getLogger(__name__)


def explain(store: Store, job: Work | Waiting, reason: str) -> None:
    """Set the reason why the job waits, unless it has this reason already."""
    if job.reason != reason:
        store.work.explain(job.job_id, state=state_of(job), reason=reason)


def lose(store: Store, work: Work, reason: str) -> None:
    """End the job's attempt as lost."""
    with suppress(NotFound):  # it ended and was deleted in the meantime
        store.attempts.lose(work.job_id, work.attempt, reason=reason)
        with log_fields(job=work.job_id, attempt=work.attempt):
            _log.warning("job %s, attempt %d: %s", work.job_id, work.attempt, reason)


def fail(store: Store, job: Work | Waiting, reason: str) -> None:
    """End a job that cannot get an attempt."""
    with suppress(NotFound):  # it was cancelled and deleted in the meantime
        left = store.work.fail_waiting(job.job_id, state=state_of(job), deadline=job.deadline, reason=reason)
        if left.state is JobState.FAILED:
            with log_fields(job=job.job_id):
                _log.warning("job %s: %s", job.job_id, reason)


def state_of(job: Work | Waiting) -> JobState:
    """Return the state in which the job was seen."""
    return job.state if isinstance(job, Work) else JobState.QUEUED


def unreadable(fields: str) -> str:
    """Return the reason why a job with unreadable `fields` of another release does not go on."""
    return f"this release cannot read the job: {fields}"
