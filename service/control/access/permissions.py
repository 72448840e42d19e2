"""Permissions of jobs: what they may bring along. Pure: the API refuses what is found."""

import os
from collections.abc import Iterator

from pydantic import ValidationError

from service.job.problems import Problem
from service.job.spec import JobSpec
from service.job.sweep import workloads
from trainers.spec.workloads import OwnWorkload

_REMEDY = (
    "start the service with WIRETUNE_USER_CODE=true if you trust all who have a key; `wiretune run` allows it in a "
    "service of its own (`wiretune stop` ends the one that is up)"
)


def conflicts(spec: JobSpec, *, user_code: bool) -> list[Problem]:
    """Return what of the job needs a service that runs its users' code; where this one does, what it cannot find."""
    try:
        return list(_relative(spec)) if user_code else list(_foreign(spec))
    except ValidationError as error:
        return [Problem(pointer="/params", message=f"this release does not accept a value: {error.errors()[0]['msg']}")]


def _foreign(spec: JobSpec) -> Iterator[Problem]:
    for place, workload in workloads(spec):
        if isinstance(workload, OwnWorkload):
            message = f"`factory` runs code that is not ours, which this service does not allow: {_REMEDY}"
            yield Problem(pointer=within(place, "factory"), message=message, value=workload.factory)
        if workload.weights is not None:
            message = (
                "`weights` reads a file of the workers' machine, which this service does not allow: take those of a "
                f"job, `weights_of: {{job: ID}}`, or {_REMEDY}"
            )
            yield Problem(pointer=within(place, "weights"), message=message, value=workload.weights)


def _relative(spec: JobSpec) -> Iterator[Problem]:
    """Yield places that mean another one on every worker."""
    for place, workload in workloads(spec):
        for field, path in {"weights": workload.weights, "path": getattr(workload, "path", None)}.items():
            if path is not None and "://" not in path and not os.path.isabs(path):
                message = (
                    f"`{field}` must be absolute, got {path!r}; `wiretune run` takes it from the folder you are in"
                )
                yield Problem(pointer=within(place, field), message=message, value=path)


def within(place: str, field: str) -> str:
    """Return where `field` is: of the job's own workload in it, of a sample's in the value that brings it."""
    return f"{place}/{field}" if place == "/workload" else place
