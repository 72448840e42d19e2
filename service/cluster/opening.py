"""What a run knows before its first step: the search space, with the level that the link suggests."""

import math
import statistics

from search.space import SearchSpace
from search.types import Values
from service.spec import TrialSpec
from trainers import cost
from trainers.config import EmulateLink, NoneConfig, ThresholdConfig
from trainers.group import Group
from trainers.segment import Segment, SegmentResult
from trainers.shapes import parameter_shapes

#: Discarded steps before the clock starts: libraries load and connections open in them.
WARM_UP_STEPS = 3
#: The slot that the warm-up, and later every stage, starts from: one copy of the state in memory.
STAGE = "stage"


def opening_space(spec: TrialSpec, group: Group) -> tuple[SearchSpace, SegmentResult]:
    """Return the search space of a fresh run, and the warm-up that measured the machine for it."""
    level = _level(spec)
    lowest = level[0] if isinstance(level, tuple) else level
    warm_up = _warm_up(group, spec.replica.optimizer.learning_rate, lowest)
    start = _start(spec, level, warm_up) if isinstance(level, tuple) else level
    space = SearchSpace(
        optimizer=spec.replica.optimizer.kind,
        guess=Values(learning_rate=spec.replica.optimizer.learning_rate, level=start),
        level_range=level if isinstance(level, tuple) else None,
        level_start=start if isinstance(level, tuple) else None,
    )
    return space, warm_up


def _level(spec: TrialSpec) -> float | tuple[float, float] | None:
    exchange = spec.replica.exchange
    return exchange.level if isinstance(exchange, ThresholdConfig) else None


def _warm_up(group: Group, learning_rate: float, level: float | None) -> SegmentResult:
    group.snapshot(STAGE)
    result = group.run(Segment(num_steps=WARM_UP_STEPS, learning_rate=learning_rate, level=level))
    group.restore(STAGE)
    return result


def _start(spec: TrialSpec, level: tuple[float, float], warm_up: SegmentResult) -> float:
    """Return the level to start from: the link's rule where the link is stated, else the range's middle.

    The rule reads a clock, so a budget without seconds takes the middle as well.
    """
    low, high = level
    link, exchange = spec.replica.link, spec.replica.exchange
    assert isinstance(exchange, ThresholdConfig)
    if spec.budget.seconds is None or exchange.search != "density" or not isinstance(link, EmulateLink):
        return math.sqrt(low * high)
    rule = cost.link_rule_density(_compute_seconds(spec, warm_up, low), _transfer(spec, None).seconds(link))
    return min(high, max(low, rule))


def _compute_seconds(spec: TrialSpec, warm_up: SegmentResult, density: float) -> float:
    """Return what a step takes without its exchange, in seconds."""
    link = spec.replica.link
    assert isinstance(link, EmulateLink)
    exchange_s = _transfer(spec, density).seconds(link)
    return max(0.0, statistics.median(warm_up.step_seconds) - exchange_s)


def _transfer(spec: TrialSpec, density: float | None) -> cost.Traffic:
    """Return a step's traffic at `density`; None: dense."""
    shapes = parameter_shapes(spec.replica.workload)
    assert shapes is not None, "a user's own model has no declared shapes"
    return cost.step_traffic(
        shapes,
        num_workers=spec.workers.count,
        exchange=NoneConfig() if density is None else spec.replica.exchange,
        density=density,
    )
