"""A job with every possible part, and a field of another release in one of them."""

import copy
from collections.abc import Iterator
from typing import Any

from service.control import jobs
from service.control.store import Store
from service.job.spec import JobSpec

JOB = JobSpec.model_validate(
    {
        "workload": {"kind": "digits-mlp"},
        "workers": {"count": 1},
        "exchange": {"kind": "threshold", "density": [0.003, 0.1]},
        "budget": {"steps": 1000},
        "webhook": {"url": "https://example.org/over"},
        "params": {"clip": {"uniform": [0.5, 2.0]}},
        "sweep": {"samples": 2, "at_once": 1},
    }
)


def _models(content: Any, place: str = "") -> Iterator[str]:
    """Yield the places of models in a stored job, itself first; labels and params are named by their users."""
    if isinstance(content, dict) and place not in ("labels", "params"):
        yield place
    for name, each in enumerate(content) if isinstance(content, list) else content.items():
        if isinstance(each, dict | list):
            yield from _models(each, f"{place}.{name}".lstrip("."))


#: Where another release may have a field more; "" is the job itself.
PARTS = tuple(dict.fromkeys(_models(JOB.model_dump(mode="json"))))


def with_a_colour(stored: dict[str, Any], part: str) -> dict[str, Any]:
    """Return the stored job with a field in `part` that no release has."""
    changed = copy.deepcopy(stored)
    inside: Any = changed
    for name in part.split(".") if part else ():
        inside = inside[int(name) if isinstance(inside, list) else name]
    inside["colour"] = "red"
    return changed


def make_unreadable(store: Store, job_id: str, part: str) -> None:
    """Leave the stored job as a release with that field would."""

    def write(session: Any) -> None:
        job = jobs.locked(session, job_id)
        job.spec = with_a_colour(job.spec, part)

    store._db.write(write)
