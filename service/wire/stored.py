"""Stored jobs, which were accepted before.

Another release may have stored one, with fields or values that this release does not know.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import RootModel, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from service.errors import UnreadableJob
from service.job.problems import problems_of
from service.job.spec import JobSpec


class UnreadJob(RootModel[dict[str, Any]], frozen=True):
    """A job that this release cannot read, as it is stored: any fields."""


def _as_shown(content: Any, _: ValidatorFunctionWrapHandler) -> JobSpec | UnreadJob:
    if isinstance(content, JobSpec | UnreadJob):
        return content
    try:
        return JobSpec.stored(content)
    except ValidationError:
        return UnreadJob.model_validate(content)


#: A stored job for a person to look at, readable by this release or not.
ShownJob = Annotated[JobSpec | UnreadJob, WrapValidator(_as_shown)]


def stored_spec(job_id: str, content: Mapping[str, Any]) -> JobSpec:
    """Read a job from its stored `content`. Raises UnreadableJob."""
    try:
        return JobSpec.stored(content)
    except ValidationError as error:
        raise UnreadableJob(job_id, _fields(error, content)) from error


def unread_fields(content: Mapping[str, Any]) -> str:
    """Return the paths of fields that this release cannot read, such as `workers.colour`; empty if it can read all."""
    try:
        JobSpec.stored(content)
    except ValidationError as error:
        return _fields(error, content)
    return ""


def has_one_seed(spec: JobSpec | UnreadJob) -> bool:
    """Return whether an arm's name identifies its training run; False if the job cannot be read."""
    return isinstance(spec, JobSpec) and len(spec.seeds) == 1


def _fields(error: ValidationError, content: Mapping[str, Any]) -> str:
    pointers = (problem.pointer for problem in problems_of(error, content, JobSpec))
    return ", ".join(dict.fromkeys(each[1:].replace("/", ".") for each in pointers if each))
