"""Prepare a run before its first step: measure the machine, and build the search space with a level for the link."""

import statistics
from collections.abc import Sequence
from typing import Any

from search.budget import spending
from search.budget.link import NUM_DENSITIES, StepCost, best_density
from search.config import StagedConfig, WideConfig
from search.space import Axis, SearchSpace, Weights
from search.types import Values
from service.cluster import exchange_probing
from service.cluster.first_steps import alone_seconds, step_cost, warm_up
from service.cluster.slots import STAGE
from service.job.parts import TrialSpec
from trainers.methods.exchange.auto.spec import LOCAL, AutoConfig
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import SgdConfig, contenders, num_iterates
from trainers.segment import SegmentResult
from trainers.spec.link import EmulateLink
from trainers.spec.ranges import first
from trainers.spec.sync import LocalUpdatesConfig
from trainers.traffic import collectives, cost
from trainers.training.group import Group
from trainers.workload import WorkloadError

#: Period and steps of a warm-up with averages of local updates. Its last step is the second average: in the first
#: one, connections open and libraries load.
AVERAGE_PERIOD, AVERAGE_STEPS = 2, 4


def opening_space(
    spec: TrialSpec, groups: Sequence[Group], *, chosen_because: str = ""
) -> tuple[SearchSpace, list[SegmentResult]]:
    """Return the search space of a fresh run, and the warm-ups of its lanes, of which the first measured the machine.

    `chosen_because` says why the run has this optimizer, if the job names several.

    Raises WorkloadError for a budget that would never be spent.
    """
    require_traffic(spec, groups[0])
    space, warm_ups = _measured_space(spec, groups)
    if chosen_because:
        named = space.guess.model_copy(update={"optimizer": space.optimizer})
        space = space.model_copy(update={"guess": named, "chosen_because": chosen_because})
    if not spec.replica.menu:  # for competing exchanges, the cost is predicted
        space, warm_ups = _with_step(spec, space, groups[0], warm_ups)
    num_alone, samples = spec.replica.num_alone(groups[0].num_workers), warm_ups[0].batch_samples
    known = {
        "weights": groups[0].built.matrices and Weights(*groups[0].built.matrices),
        **_landscape(spec, groups[0]),
        "warms_up": any(each.warmup_steps for each in contenders(spec.replica.optimizer)),
        "num_alone": num_alone,
        "num_lanes": len(groups),
        "alone_s": min((each for each in map(alone_seconds, warm_ups) if each is not None), default=None),
        "batch_size": samples and samples * (groups[0].num_workers if num_alone == 1 else 1),
    }
    return space.model_copy(update=known), warm_ups


def _measured_space(spec: TrialSpec, groups: Sequence[Group]) -> tuple[SearchSpace, list[SegmentResult]]:
    space = stated_space(spec)
    if spec.replica.menu:
        return exchange_probing.opened(spec, space, groups)
    space = space.model_copy(update=step_bytes(spec, groups[0]))
    axis, warm_ups = space.axis("level"), [warm_up(group, space.sparsest) for group in groups]
    best = None if axis is None else _best_density(spec, axis, warm_ups[0], groups[0])
    if best is None:
        return space, warm_ups
    return space.model_copy(update={"guess": space.guess.model_copy(update={"level": best})}), warm_ups


def _with_step(
    spec: TrialSpec, space: SearchSpace, group: Group, warm_ups: list[SegmentResult]
) -> tuple[SearchSpace, list[SegmentResult]]:
    """Return `space` with the mean cost of a step, averages of local updates included, and all warm-ups.

    The step is measured at the opening level. Warm-ups are shorter than most rounds, so averages need their own
    estimate. Their bytes follow from the shapes, and their seconds from the link if the job states it. Otherwise, if
    the policy allows an average at any step, workers time one before the clock starts.
    """
    at_opening = warm_ups
    if space.opening.level != space.sparsest.level:
        at_opening = [warm_up(group, space.opening)]
        warm_ups = [*warm_ups, *at_opening]
    steps = [step for each in at_opening if (step := step_cost(each)) is not None]
    step, sync = min(steps, key=lambda each: each.seconds, default=None), spec.replica.sync
    is_asked_for = isinstance(spec.controller, StagedConfig) and spec.budget.counts_traffic
    if step is None or not is_asked_for or not isinstance(sync, LocalUpdatesConfig):
        return space.model_copy(update={"step": step}), warm_ups
    average, period = _average(spec, space, group), space.period_of(space.opening)
    seconds, met = 0.0, list[SegmentResult]()
    if isinstance(spec.replica.link, EmulateLink):
        seconds = average.seconds(spec.replica.link)
    elif _may_meet_at_any_step(spec):
        met = [warm_up(group, space.opening.model_copy(update={"period": AVERAGE_PERIOD}), AVERAGE_STEPS)]
        seconds = max(0.0, met[0].step_seconds[-1] - step.seconds) if len(met[0].step_seconds) == AVERAGE_STEPS else 0.0
    shown = max(0.0, seconds / period - sync.overlapped * step.seconds)
    mean = StepCost(bytes=average.bytes / period, seconds=step.seconds + shown)
    return space.model_copy(update={"step": mean}), [*warm_ups, *met]


def _average(spec: TrialSpec, space: SearchSpace, group: Group) -> collectives.Traffic:
    """Return the traffic between the nodes of `group` of all averages in a round of local updates."""
    return spec.replica.sync.meeting_traffic(
        group.shapes,
        num_workers=len(group.nodes),
        exchange=spec.replica.exchange,
        level=space.opening.level,
        num_iterates=num_iterates(space.optimizer),
    )


def _may_meet_at_any_step(spec: TrialSpec) -> bool:
    """Return whether workers can time an average before the clock starts.

    Their policy must accept another period, and they must wait for the average. With `workers.min` they do not time
    one: such a short round would give wrong paces.
    """
    sync, is_timed = spec.replica.sync, spec.budget.seconds is not None
    return is_timed and "period" in sync.searchable() and not sync.overlapped and spec.workers.min is None


def with_evaluations(spec: TrialSpec, space: SearchSpace, seconds: float) -> SearchSpace:
    """Return `space` with what evaluations of so many seconds add to a step, if the budget counts seconds.

    One that takes longer than the budget ends the run, so it counts as the whole budget at most.
    """
    if spec.budget.seconds is None:
        return space
    return space.model_copy(update={"evaluation_s": min(seconds, spec.budget.seconds) / spec.objective.every})


def evaluation_share(space: SearchSpace) -> float:
    """Return the share of the clock that evaluations of the committed line take; 0: not known."""
    whole = 0.0 if space.step is None else space.step.seconds + space.evaluation_s
    return space.evaluation_s / whole if whole else 0.0


def starts_over(spec: TrialSpec) -> bool:
    """Return whether a run may start over: its best state is exported, and neither patience nor a rung judges it."""
    is_judged = spec.objective.patience is not None or bool(spec.rungs)
    return spec.checkpoint.export == "best" and not is_judged and getattr(spec.controller, "start_over", False)


def step_bytes(spec: TrialSpec, group: Group) -> dict[str, Any]:
    """Return the fields of the search space with a worker's bytes in a step: none if the level ignores the link."""
    if not spec.replica.follows_link:
        return {"dense_bytes": None, "level_bytes": ()}
    axis = stated_space(spec).axis("level")
    densities = [] if axis is None else axis.grid(NUM_DENSITIES)
    by_level = tuple((density, _transfer(spec, group, density).bytes) for density in densities)
    return {"dense_bytes": _transfer(spec, group, None).bytes, "level_bytes": by_level}


def require_traffic(spec: TrialSpec, group: Group) -> None:
    """Raise WorkloadError if the budget has only bytes and would never be spent."""
    if spec.budget.counts_bytes_alone and len(group.nodes) == 1:
        raise WorkloadError(
            f"all {group.num_workers} workers were found on one machine, which sends nothing, so `budget.bytes` alone "
            "would never end the job: add `budget.seconds` or `steps`, or give `workers.per_node` a number"
        )


def stated_space(spec: TrialSpec) -> SearchSpace:
    """Return the search space that the job states. A searched value opens in the middle, or with its first choice."""
    replica = spec.replica
    ranges, level = replica.searched(counts_traffic=spec.budget.counts_traffic)
    choices = {each.name: each.pair[0] for each in ranges if isinstance(each.pair[0], bool)}
    own = contenders(replica.optimizer)[0]
    return SearchSpace(
        optimizer=own.kind,
        guess=Values(
            learning_rate=own.learning_rate,
            level=level,
            nesterov=choices.get("nesterov"),
        ),
        level_name=replica.exchange.level_name,
        momentum=_momentum(own),
        period=replica.period,
        periods=tuple((each.name, int(each.level or 1)) for each in replica.menu if each.kind == LOCAL),
        axes=tuple(Axis.model_validate({"name": each.name, "low": each.low, "high": each.high}) for each in ranges),
        starts_over=starts_over(spec),
    )


def _momentum(optimizer: object) -> float:
    """Return SGD's momentum, or the first value of its range; 0 for other optimizers, where it is not used."""
    return float(first(optimizer.momentum)) if isinstance(optimizer, SgdConfig) else 0.0


def _landscape(spec: TrialSpec, group: Group) -> dict[str, float]:
    """Return the loss and sharpness of the new model, if the controller uses them.

    Sharpness is left out if gradients are clipped, since steps are shorter then. This is judged by single workers'
    gradients, which are longer than their mean: one search too many does little harm.
    """
    config = spec.controller
    if not isinstance(config, WideConfig) or config.first_search == "always" or config.stated_rates is not None:
        return {}
    if not spec.replica.steps_along_gradient:
        return {}
    group.snapshot(STAGE)
    found = group.landscape()
    group.restore(STAGE)
    if found is None:
        return {}
    is_clipped = spec.replica.clip is not None and found.gradient > spec.replica.clip
    return {"first_loss": found.loss} | ({} if is_clipped else {"sharpness": found.sharpness})


def _best_density(spec: TrialSpec, axis: Axis, warmed: SegmentResult, group: Group) -> float | None:
    """Return the density by which the budget teaches the most, if the link is stated; else None.

    `group` ran `warmed` at the lowest density. The result is also None for a budget without seconds, which must not
    read a clock (the controller chooses then), and if the first step diverged, so that its time is unknown.
    """
    link = spec.replica.link
    if spec.budget.seconds is None or not spec.replica.follows_link or not isinstance(link, EmulateLink):
        return None
    if not warmed.step_seconds:
        return None
    sparse_s = _transfer(spec, group, axis.low).seconds(link)
    compute_s = max(0.0, statistics.median(warmed.step_seconds) - sparse_s)

    def cost(density: float) -> StepCost:
        traffic = _transfer(spec, group, density)
        return StepCost(bytes=traffic.bytes, seconds=compute_s + traffic.seconds(link))

    return best_density(spending.caps(spec.budget), axis.grid(NUM_DENSITIES), cost)


def _transfer(spec: TrialSpec, group: Group, density: float | None) -> collectives.Traffic:
    """Return the traffic between the nodes of `group` in a step at `density`; None: dense."""
    exchange = spec.replica.exchange
    return cost.step_traffic(
        [(group.num_elements,)],
        num_workers=len(group.nodes),
        exchange=NoneConfig() if density is None or isinstance(exchange, AutoConfig) else exchange,
        level=density,
    )
