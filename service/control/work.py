"""Jobs and attempts as the reconciler sees them."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from service.control import attempts
from service.control.models import AttemptRow, JobRow
from service.control.queue.capacity import Shape
from service.job.parts import Workers
from service.job.spec import JobSpec
from service.job.states import JobState
from service.wire.stored import stored_spec


@dataclass(frozen=True, kw_only=True)
class Work:
    """A job that is not over, as the reconciler sees it. Times are seconds since the epoch."""

    job_id: str
    project: str
    state: JobState
    reason: str
    stored: Mapping[str, Any]
    attempt: int
    submission_id: str | None  # None: no attempt yet
    not_before: float
    deadline: float | None
    lease_expires: float | None
    deadline_moved: bool = False
    is_heard: bool = False  # whether the attempt has reported anything yet
    shape: Shape | None = None  # with the attempt's workers; None: no attempt yet, or unreadable

    @cached_property
    def workers(self) -> Workers:
        """The job's `workers`, or defaults if it is unreadable, since such a job's driver is watched, too."""
        try:
            return Workers.model_validate(self.stored.get("workers", {}))
        except ValidationError:
            return Workers()

    @cached_property
    def spec(self) -> JobSpec:
        """The job's spec. Raises UnreadableJob if this release cannot read it."""
        return stored_spec(self.job_id, self.stored)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An attempt, as the search for its log sees it. Times are seconds since the epoch."""

    job_id: str
    number: int
    submission_id: str
    ended_at: float | None
    log_kept: bool


def work_of(job: JobRow, attempt: AttemptRow | None, *, is_heard: bool = False) -> Work:
    return Work(
        job_id=job.id,
        project=job.project,
        state=job.job_state,
        reason=job.reason,
        stored=job.spec,
        attempt=job.attempt,
        submission_id=None if attempt is None else attempt.submission_id,
        not_before=job.not_before,
        deadline=job.deadline,
        deadline_moved=job.deadline_moved,
        lease_expires=None if attempt is None else attempt.lease_expires,
        is_heard=is_heard,
        shape=None if attempt is None else _shape(job, attempt),
    )


def _shape(job: JobRow, attempt: AttemptRow) -> Shape | None:
    try:
        shape = Shape.of_json(job.spec)
    except ValidationError:  # of another release
        return None
    return shape._replace(num_workers=attempts.num_workers(job, attempt) or shape.num_workers, least=0)


def attempt_of(row: AttemptRow) -> Attempt:
    return Attempt(**{field.name: getattr(row, field.name) for field in fields(Attempt)})
