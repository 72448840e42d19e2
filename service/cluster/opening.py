"""What a run knows before its first step: the search space, with the level that the link suggests."""

import math
import statistics
from collections.abc import Sequence

from search import link as link_rule
from search.space import SearchSpace
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


def opening_space(spec: TrialSpec, groups: Sequence[Group]) -> tuple[SearchSpace, list[SegmentResult]]:
    """Return the search space of a fresh run, and the warm-ups of its lanes; the first measured the machine for it."""
    level = _level(spec)
    lowest = level[0] if isinstance(level, tuple) else level
    warm_ups = [_warm_up(group, spec.replica.optimizer.learning_rate, lowest) for group in groups]
    num_elements = groups[0].num_elements
    start = _start(spec, level, warm_ups[0], num_elements) if isinstance(level, tuple) else level
    space = SearchSpace(
        optimizer=spec.replica.optimizer.kind,
        guess=Values(learning_rate=spec.replica.optimizer.learning_rate, level=start),
        level_range=level if isinstance(level, tuple) else None,
        level_start=start if isinstance(level, tuple) else None,
        dense_bytes=_transfer(spec, num_elements, None).bytes if _is_a_density(spec) else None,
    )
    return space, warm_ups


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
    link = spec.replica.link
    if spec.budget.seconds is None or not _is_a_density(spec) or not isinstance(link, EmulateLink):
        return math.sqrt(low * high)
    dense_s = _transfer(spec, num_elements, None).seconds(link)
    sparse_s = _transfer(spec, num_elements, low).seconds(link)
    compute_s = max(0.0, statistics.median(warm_up.step_seconds) - sparse_s)
    return link_rule.rule(compute_s, dense_s, level)


def _is_a_density(spec: TrialSpec) -> bool:
    exchange = spec.replica.exchange
    return isinstance(exchange, ThresholdConfig) and exchange.search == "density"


def _transfer(spec: TrialSpec, num_elements: int, density: float | None) -> cost.Traffic:
    """Return the traffic of a step that exchanges `num_elements` at `density`; None: dense."""
    return cost.step_traffic(
        [(num_elements,)],
        num_workers=spec.workers.count,
        exchange=NoneConfig() if density is None else spec.replica.exchange,
        density=density,
    )
