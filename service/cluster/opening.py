"""What a run knows before its first step: the search space, with the level that the link suggests."""

import math
import statistics

from search.space import Axis, SearchSpace
from search.types import Values
from service.spec import TrialSpec
from trainers import cost
from trainers.config import EmulateLink, NoneConfig, ThresholdConfig
from trainers.group import Group
from trainers.segment import Segment, SegmentResult

#: Discarded steps before the clock starts: libraries load and connections open in them.
WARM_UP_STEPS = 3
#: The slot that the warm-up, and later every stage, starts from: one copy of the state in memory.
STAGE = "stage"


def opening_space(spec: TrialSpec, group: Group) -> tuple[SearchSpace, SegmentResult]:
    """Return the search space of a fresh run, and the warm-up that measured the machine for it."""
    level = _level(spec)
    lowest = level[0] if isinstance(level, tuple) else level
    warm_up = _warm_up(group, spec.replica.optimizer.learning_rate, lowest)
    start = _start(spec, level, warm_up, group.num_elements) if isinstance(level, tuple) else level
    space = SearchSpace(
        optimizer=spec.replica.optimizer.kind,
        guess=Values(learning_rate=spec.replica.optimizer.learning_rate, level=start),
        axes=(Axis(name="level", low=level[0], high=level[1]),) if isinstance(level, tuple) else (),
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


def _start(spec: TrialSpec, level: tuple[float, float], warm_up: SegmentResult, num_elements: int) -> float:
    """Return the level to start from: the link's rule where the link is stated, else the range's middle.

    The rule reads a clock, so a budget without seconds takes the middle as well.
    """
    low, high = level
    link, exchange = spec.replica.link, spec.replica.exchange
    assert isinstance(exchange, ThresholdConfig)
    if spec.budget.seconds is None or exchange.search != "density" or not isinstance(link, EmulateLink):
        return math.sqrt(low * high)
    dense_s = _transfer(spec, num_elements, None).seconds(link)
    sparse_s = _transfer(spec, num_elements, low).seconds(link)
    compute_s = max(0.0, statistics.median(warm_up.step_seconds) - sparse_s)
    rule = cost.link_rule_density(compute_s, dense_s)
    return min(high, max(low, rule))


def _transfer(spec: TrialSpec, num_elements: int, density: float | None) -> cost.Traffic:
    """Return the traffic of a step that exchanges `num_elements` at `density`; None: dense."""
    return cost.step_traffic(
        [(num_elements,)],
        num_workers=spec.workers.count,
        exchange=NoneConfig() if density is None else spec.replica.exchange,
        density=density,
    )
