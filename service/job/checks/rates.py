"""Find conflicts of a job's guess with the learning rates that its controller may try."""

from collections.abc import Iterator

from search.config import StagedConfig
from service.job.parts import JobParts
from trainers.spec.ranges import Conflict


def rate_conflicts(job: JobParts) -> Iterator[Conflict]:
    """Yield the guesses of `job` that are out of range, each at its place, once."""
    found: dict[str, Conflict] = {}
    for index, arm in enumerate(job.arms):
        controller = arm.controller or job.controller
        if not isinstance(controller, StagedConfig) or controller.stated_rates is None:
            continue
        low, high = controller.stated_rates
        guess = (arm.optimizer or job.optimizer).learning_rate
        place = f"/arms/{index}/optimizer" if arm.optimizer else "/optimizer"
        if not low <= guess <= high:
            message = (
                f"the guess must be within `min_learning_rate` and `max_learning_rate` of the controller of arm "
                f"`{arm.name}`, [{low:g}, {high:g}], got {guess:g}"
            )
            found.setdefault(place, Conflict(f"{place}/learning_rate", guess, message))
    yield from found.values()
