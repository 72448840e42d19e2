"""Permissions of jobs: what they may bring along. Pure: the API refuses what is found."""

import os
from collections.abc import Iterator

from service.job.problems import Problem
from service.job.spec import JobSpec
from trainers.spec.workloads import OwnWorkload

_REMEDY = (
    "start the service with WIRETUNE_USER_CODE=true if you trust all who have a key; `wiretune run` allows it in a "
    "service of its own (`wiretune stop` ends the one that is up)"
)


def conflicts(spec: JobSpec, *, user_code: bool) -> list[Problem]:
    """Return what of the job needs a service that runs its users' code; where this one does, what it cannot find."""
    return list(_relative(spec)) if user_code else list(_foreign(spec))


def _foreign(spec: JobSpec) -> Iterator[Problem]:
    if isinstance(spec.workload, OwnWorkload):
        message = f"`factory` runs code that is not ours, which this service does not allow: {_REMEDY}"
        yield Problem(pointer="/workload/factory", message=message, value=spec.workload.factory)
    if spec.workload.weights is not None:
        message = f"`weights` reads a file of the workers' machine, which this service does not allow: {_REMEDY}"
        yield Problem(pointer="/workload/weights", message=message, value=spec.workload.weights)


def _relative(spec: JobSpec) -> Iterator[Problem]:
    """Yield places that mean another one on every worker."""
    places = {"weights": spec.workload.weights, "path": getattr(spec.workload, "path", None)}
    for field, place in places.items():
        if place is not None and "://" not in place and not os.path.isabs(place):
            message = f"`{field}` must be absolute, got {place!r}; `wiretune run` takes it from the folder you are in"
            yield Problem(pointer=f"/workload/{field}", message=message, value=place)
