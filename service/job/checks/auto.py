"""Find conflicts of jobs whose exchanges or optimizers compete (`{kind: auto}` of either)."""

from collections.abc import Iterator

from search.config import (
    MAX_DIMENSIONS,
    BoConfig,
    ControllerConfig,
    ScheduleConfig,
    SobolConfig,
    StagedConfig,
)
from service.job.parts import Arm, JobParts
from trainers.methods.exchange.auto.spec import AutoConfig, Beside, options_misfit
from trainers.methods.optimizer.spec import AutoOptimizerConfig, exchange_conflict
from trainers.spec.ranges import Conflict


def option_conflicts(job: JobParts) -> Iterator[Conflict]:
    """Yield what does not fit in the arms of `job`, each at its place."""
    for index, arm in enumerate(job.arms):
        exchange, controller = arm.exchange or job.exchange, arm.controller or job.controller
        place = f"/arms/{index}/exchange" if arm.exchange else "/exchange"
        if isinstance(exchange, AutoConfig):
            num_ranges = sum(1 for _ in job.placed_ranges(index, arm))
            if message := _why_unsearched(controller, num_ranges):
                yield Conflict(place, exchange.kind, f"arm `{arm.name}`: {message}")
            if message := options_misfit(exchange, **beside(job, arm)):
                yield Conflict(f"{place}/options", exchange.options, f"arm `{arm.name}`: {message}")


def beside(job: JobParts, arm: Arm) -> Beside:
    """Return what decides which options fit `arm`."""
    optimizer = arm.optimizer or job.optimizer
    return Beside(optimizer=optimizer.kind, per_node=job.workers.per_node, partition=job.partition.kind)


def _why_unsearched(controller: ControllerConfig, num_ranges: int) -> str | None:
    """Return why nothing chooses among options beside `num_ranges` ranges; None: the controller, or its schedule."""
    if not isinstance(controller, BoConfig | SobolConfig | ScheduleConfig):
        return (
            f"`auto` needs a controller that searches it (`bo`, `sobol`), or a `schedule` of one that has, got "
            f"`{controller.kind}`: give one exchange, as `{{kind: threshold, density: 0.01}}`"
        )
    if num_ranges >= MAX_DIMENSIONS - 1:
        return (
            f"at most {MAX_DIMENSIONS - 1} values are searched beside the learning rate, and there are {num_ranges} "
            "ranges besides `auto`: give one number for one of them, or one exchange"
        )
    return None


def contender_conflicts(job: JobParts) -> Iterator[Conflict]:
    """Yield what keeps optimizers from competing in the arms of `job`, each at its place."""
    for index, arm in enumerate(job.arms):
        optimizer, controller = arm.optimizer or job.optimizer, arm.controller or job.controller
        if not isinstance(optimizer, AutoOptimizerConfig):
            continue
        place = f"/arms/{index}/optimizer" if arm.optimizer else "/optimizer"
        exchange = arm.exchange or job.exchange
        for message in (_why_no_contest(controller), exchange_conflict(optimizer, exchange.kind)):
            if message:
                yield Conflict(place, optimizer.kind, f"arm `{arm.name}`: {message}")


def _why_no_contest(controller: ControllerConfig) -> str | None:
    """Return why nothing chooses among optimizers; None: the controller does, or its schedule has."""
    if not isinstance(controller, BoConfig | SobolConfig | ScheduleConfig):
        return (
            "optimizers compete in the first search of `bo` or `sobol`, or a `schedule` names one, and the controller "
            f"is `{controller.kind}`: give one optimizer, as `{{kind: adamw}}`"
        )
    if isinstance(controller, StagedConfig) and controller.stated_rates is not None:
        low, high = controller.stated_rates
        return (
            f"learning rates in [{low:g}, {high:g}] mean something else to each optimizer: leave out "
            "`min_learning_rate` and `max_learning_rate`, and give each option its own guess"
        )
    if isinstance(controller, BoConfig) and controller.transfer is not None:
        return (
            "past jobs say at which rate one optimizer was best, and here several compete: leave out `transfer`, or "
            "give one optimizer"
        )
    return None
