"""Prepare a run before its first step: the search space, with the level that the link suggests."""

import statistics
from collections.abc import Mapping, Sequence

from search.budget import spending
from search.budget.link import NUM_DENSITIES, StepCost, best_density
from search.budget.optimizer_choice import best_optimizer, why_best
from search.config import ScheduleConfig, WideConfig
from search.space import Axis, Contender, SearchSpace, Weights
from search.types import Values
from service.cluster import exchange_probing
from service.job.parts import TrialSpec
from trainers.methods.exchange.auto.spec import LOCAL, AutoConfig
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import OptimizerConfig, SgdConfig, contenders
from trainers.segment import Segment, SegmentResult
from trainers.spec.link import EmulateLink
from trainers.spec.ranges import first
from trainers.traffic import collectives, cost
from trainers.training.group import Group
from trainers.workload import WorkloadError

#: Discarded steps before the clock starts: libraries load and connections open in them.
WARM_UP_STEPS = 3
#: How often each of several optimizers is timed.
NUM_TURNS = 2
#: The slot that the warm-up, and later every stage, starts from: one copy of the state in memory.
STAGE = "stage"


def opening_space(spec: TrialSpec, groups: Sequence[Group]) -> tuple[SearchSpace, list[SegmentResult]]:
    """Return the search space of a fresh run, and the warm-ups of its lanes; the first measured the machine for it.

    Raises WorkloadError for a budget that would never be spent.
    """
    require_traffic(spec, groups[0])
    spec, why, tried = _with_best_optimizer(spec, groups[0])
    space, warm_ups = _measured_space(spec, groups, is_chosen=bool(why))
    steps = [step for warm_up in warm_ups if (step := exchange_probing.step_cost(warm_up)) is not None]
    num_alone, samples = spec.replica.num_alone(groups[0].num_workers), warm_ups[0].batch_samples
    known = {
        "step": min(steps, key=lambda each: each.seconds, default=None),
        "weights": groups[0].matrices and Weights(*groups[0].matrices),
        "sharpness": _sharpness(spec, groups[0]),
        "chosen_because": why,
        "warms_up": any(each.warmup_steps for each in contenders(spec.replica.optimizer)),
        "num_alone": num_alone,
        "batch_size": samples and samples * (groups[0].num_workers if num_alone == 1 else 1),
    }
    return space.model_copy(update=known), [*tried, *warm_ups]


def _with_best_optimizer(spec: TrialSpec, group: Group) -> tuple[TrialSpec, str, list[SegmentResult]]:
    """Return `spec` with that optimizer of several by which its budget is expected to teach the most, and why.

    Where the budget counts seconds a few steps of each show what they take. No reason where there is one optimizer
    alone, where the job has probes compare them, or where a schedule says which it is.
    """
    config, options = spec.controller, contenders(spec.replica.optimizer)
    by_probes = isinstance(config, WideConfig) and config.first_search == "always"
    if len(options) == 1 or by_probes or isinstance(config, ScheduleConfig):
        return spec, "", []
    own: dict[str, TrialSpec] = {each.kind: _with_optimizer(spec, each) for each in options}
    tried = _timed(own, group) if spec.budget.seconds is not None else []
    timed = _fastest_steps(tried)
    # What was not timed costs the same; one that diverged at once is left out, unless all did.
    steps = timed or dict.fromkeys(own, StepCost(bytes=1.0, seconds=1.0))
    best = best_optimizer(spending.caps(spec.budget), steps)
    lost = [f"{kind} diverged at once" for kind in own if tried and kind not in timed]
    return own[best], "; ".join([why_best(best, steps, timed=timed), *lost]), [result for _, result in tried]


def _timed(own: Mapping[str, TrialSpec], group: Group) -> list[tuple[str, SegmentResult]]:
    """Return some steps with each optimizer, in turns, as what else the machine does comes and goes.

    They are at the lowest density: there the link, which is the same for all, takes least.
    """
    values = {kind: _lowest(_stated_space(spec, is_chosen=True)) for kind, spec in own.items()}
    return [(kind, _warm_up(group, values[kind])) for _ in range(NUM_TURNS) for kind in own]


def _fastest_steps(tried: Sequence[tuple[str, SegmentResult]]) -> dict[str, StepCost]:
    """Return by optimizer the cost of its fastest step."""
    found: dict[str, StepCost] = {}
    for kind, result in tried:
        step = exchange_probing.step_cost(result)
        if step is not None and (kind not in found or step.seconds < found[kind].seconds):
            found[kind] = step
    return found


def _with_optimizer(spec: TrialSpec, optimizer: OptimizerConfig) -> TrialSpec:
    return spec.model_copy(update={"replica": spec.replica.model_copy(update={"optimizer": optimizer})})


def _measured_space(
    spec: TrialSpec, groups: Sequence[Group], *, is_chosen: bool
) -> tuple[SearchSpace, list[SegmentResult]]:
    space = _stated_space(spec, is_chosen=is_chosen)
    if spec.replica.menu:
        return exchange_probing.opened(spec, space, groups, _warm_up)
    space = space.model_copy(update={"dense_bytes": dense_bytes(spec, groups[0])})
    axis, lowest = space.axis("level"), _lowest(space)
    warm_ups = [_warm_up(group, lowest) for group in groups]
    best = None if axis is None else _best_density(spec, axis, warm_ups[0], groups[0])
    if best is None:
        return space, warm_ups
    return space.model_copy(update={"guess": space.guess.model_copy(update={"level": best})}), warm_ups


def _lowest(space: SearchSpace) -> Values:
    """Return the opening values, at the lowest level where it is searched."""
    axis, opening = space.axis("level"), space.opening
    return opening if axis is None else opening.model_copy(update={"level": axis.low})


def dense_bytes(spec: TrialSpec, group: Group) -> int | None:
    """Return what a worker sends in a step without compression; None where the link has no say in the level."""
    return _transfer(spec, group, None).bytes if spec.replica.follows_link else None


def require_traffic(spec: TrialSpec, group: Group) -> None:
    """Raise WorkloadError where a budget in bytes alone would never be spent."""
    if spec.budget.counts_bytes_alone and len(group.nodes) == 1:
        raise WorkloadError(
            f"all {group.num_workers} workers were found on one machine, which sends nothing, so `budget.bytes` alone "
            "would never end the job: add `budget.seconds` or `steps`, or give `workers.per_node` a number"
        )


def _stated_space(spec: TrialSpec, *, is_chosen: bool = False) -> SearchSpace:
    """Return the space that the job itself states; what it searches opens in the middle, or with the first choice.

    `is_chosen`: the replica has several optimizers, of which that of `spec` trains.
    """
    replica = spec.replica
    ranges, level = replica.searched(counts_traffic=spec.budget.counts_traffic)
    choices = {each.name: each.pair[0] for each in ranges if isinstance(each.pair[0], bool)}
    own, *others = contenders(replica.optimizer)
    competing = (own, *others) if others else ()
    return SearchSpace(
        optimizer=own.kind,
        optimizers=tuple(Contender(optimizer=each.kind, learning_rate=each.learning_rate) for each in competing),
        guess=Values(
            learning_rate=own.learning_rate,
            level=level,
            nesterov=choices.get("nesterov"),
            optimizer=own.kind if others or is_chosen else None,
        ),
        level_name=replica.exchange.level_name,
        momentum=_momentum(own),
        period=replica.period,
        periods=tuple((each.name, int(each.level or 1)) for each in replica.menu if each.kind == LOCAL),
        axes=tuple(Axis.model_validate({"name": each.name, "low": each.low, "high": each.high}) for each in ranges),
    )


def _momentum(optimizer: object) -> float:
    """Return SGD's momentum, where it is searched too what it opens with; of another optimizer nobody asks for it."""
    return float(first(optimizer.momentum)) if isinstance(optimizer, SgdConfig) else 0.0


def _warm_up(group: Group, values: Values) -> SegmentResult:
    group.snapshot(STAGE)
    segment = Segment(num_steps=WARM_UP_STEPS, learning_rate=values.learning_rate, level=values.level, **values.further)
    result = group.run(segment)
    group.restore(STAGE)
    return result


def _sharpness(spec: TrialSpec, group: Group) -> float | None:
    """Return how sharp the loss of the new model is, where the controller goes by it; None: elsewhere."""
    config = spec.controller
    if not isinstance(config, WideConfig) or config.first_search == "always" or config.stated_rates is not None:
        return None
    if not spec.replica.steps_along_gradient:
        return None
    group.snapshot(STAGE)
    sharpness = group.sharpness()
    group.restore(STAGE)
    return sharpness


def _best_density(spec: TrialSpec, axis: Axis, warm_up: SegmentResult, group: Group) -> float | None:
    """Return the density by which the budget teaches the most, where the link is stated.

    `group` ran `warm_up` at the lowest. A budget without seconds reads no clock, so the controller does that itself,
    and of a run whose first step diverged nobody knows what a step takes.
    """
    link = spec.replica.link
    if spec.budget.seconds is None or not spec.replica.follows_link or not isinstance(link, EmulateLink):
        return None
    if not warm_up.step_seconds:
        return None
    sparse_s = _transfer(spec, group, axis.low).seconds(link)
    compute_s = max(0.0, statistics.median(warm_up.step_seconds) - sparse_s)

    def cost(density: float) -> StepCost:
        traffic = _transfer(spec, group, density)
        return StepCost(bytes=traffic.bytes, seconds=compute_s + traffic.seconds(link))

    return best_density(spending.caps(spec.budget), axis.grid(NUM_DENSITIES), cost)


def _transfer(spec: TrialSpec, group: Group, density: float | None) -> collectives.Traffic:
    """Return the traffic between the nodes of `group` in a step that exchanges at `density`; None: dense."""
    exchange = spec.replica.exchange
    return cost.step_traffic(
        [(group.num_elements,)],
        num_workers=len(group.nodes),
        exchange=NoneConfig() if density is None or isinstance(exchange, AutoConfig) else exchange,
        level=density,
    )
