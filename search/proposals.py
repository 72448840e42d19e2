"""What a stage tries next: pure functions of the problem and the open stage."""

import math

import numpy as np
from numpy.typing import NDArray

from search.acquisition import next_point, sobol_points
from search.decision import bounding_box, trust_region
from search.evidence import diverged_values, evidence, scores
from search.space import Box, are_within
from search.spending import fraction_spent
from search.stage import Problem, Stage, is_barred
from search.surrogate import MIN_POINTS
from search.types import Origin, Values

Array = NDArray[np.float64]
Proposal = tuple[Values, Origin]

#: A guess within this factor of a grid point is that point.
SAME_RATE = 1.5
#: End points of the range that turn out best are extended, at most this often.
MAX_EXTENSIONS = 2
#: From this share of the budget on, a learning rate no longer rises: a short probe does not see slow divergence.
LAST_RISE = 0.5
#: Values closer than this were tried already.
SAME_VALUES = 1.02


def propose(problem: Problem, stage: Stage) -> Proposal | None:
    """Return what to try next in `stage`, or None if it has tried enough, or has no reason to search."""
    if stage.index == 0:
        return _propose_wide(problem, stage)
    return _propose_local(problem, stage) if problem.config.revisit == "stages" or stage.events else None


# -- the wide search -------------------------------------------------------------------------------


def wide_plan(problem: Problem) -> list[Proposal]:
    """Return the wide search's opening: a grid of learning rates, most central first, and the guess.

    Where the level is searched too it alternates between both sides of the opening level, low next to the
    centre and high beyond, so that rate and level are not confounded. Further axes start from where the run opens,
    and are then spread over their ranges (Sobol).
    """
    config, opening = problem.config, problem.opening
    centre = _clip_rate(problem, opening.learning_rate * problem.traits.centre)
    half = 10 ** (config.wide_decades / 2)
    low, high = _clip_rate(problem, centre / half), _clip_rate(problem, centre * half)
    num_points = max(3, min(math.floor(config.wide_decades) + 1, config.wide_probes - 1))
    rates = [float(rate) for rate in np.geomspace(low, high, num_points)]
    order = sorted(range(num_points), key=lambda index: abs(2 * index - num_points + 1.1))
    levels = _alternating_levels(problem, num_points)
    plan: list[Proposal] = [
        (spread.model_copy(update={"learning_rate": rates[index], "level": levels[index]}), "wide")
        for index, spread in zip(order, _spread(problem, num_points), strict=True)
    ]
    if all(not _within(opening.learning_rate, rate, SAME_RATE) for rate in rates):
        plan.insert(1, (opening, "guess"))
    return plan


def _spread(problem: Problem, num_points: int) -> list[Values]:
    """Return the opening values, and then some that fill the ranges of the further axes."""
    opening, axes = problem.opening, problem.space.further
    if not axes:
        return [opening] * num_points
    box = Box(axes=axes)
    unit_cube = np.array([[0.0] * len(axes), [1.0] * len(axes)])
    points = sobol_points(num_points - 1, unit_cube, seed=problem.seed)
    return [opening, *(box.from_unit(point.tolist(), opening) for point in points)]


def _alternating_levels(problem: Problem, num_points: int) -> list[float | None]:
    level, axis = problem.opening.level, problem.space.axis("level")
    if level is None or axis is None:
        return [level] * num_points
    reach = axis.around(level, problem.config.max_level_move)
    low, high = math.sqrt(level * reach.low), math.sqrt(level * reach.high)
    distances = [abs(2 * index - num_points + 1) // 2 for index in range(num_points)]
    return [level if distance == 0 else (low, high)[(distance + 1) % 2] for distance in distances]


def _propose_wide(problem: Problem, stage: Stage) -> Proposal | None:
    plan = wide_plan(problem)
    asked = len(stage.tried)
    if asked < len(plan):
        return plan[asked]
    num_extensions = sum(each.origin in ("wide", "guess") for each in stage.tried) - len(plan)
    if num_extensions < MAX_EXTENSIONS and not stage.pending:
        extension = _extension(problem, stage)
        if extension is not None:
            return extension, "wide"
    if asked - num_extensions >= problem.wide_probes:
        return None
    box = bounding_box(problem, [each.values for each in stage.tried])
    return _acquire(problem, stage, box)


def _extension(problem: Problem, stage: Stage) -> Values | None:
    """Return a point a decade beyond the end of the range that did best; below it if everything diverged."""
    if not stage.probes:
        return None
    tried = sorted(scores(stage), key=lambda score: score.values.learning_rate)
    best = max(tried, key=lambda score: -math.inf if score.reward is None else score.reward)
    if best is not tried[0] and best is not tried[-1]:
        return None
    factor = 0.1 if best is tried[0] else 10.0
    rate = _clip_rate(problem, best.values.learning_rate * factor)
    values = best.values.model_copy(update={"learning_rate": rate})
    return None if _within(rate, best.values.learning_rate, SAME_RATE) else values


# -- a later stage ---------------------------------------------------------------------------------


def _propose_local(problem: Problem, stage: Stage) -> Proposal | None:
    asked = len(stage.tried)
    if asked == 0:
        return stage.incumbent, "incumbent"
    if asked >= problem.config.probes or not stage.candidates:  # without its control it decides nothing
        return None
    may_rise = stage.may_rise and fraction_spent(problem.budget, stage.opened) < LAST_RISE
    region = trust_region(problem, stage.incumbent, may_rise=may_rise)
    if asked == 1 and "step_time" in stage.events and problem.space.axis("level") is not None:
        return _other_level(stage, region)
    if evidence(stage).num_finite < MIN_POINTS:
        return _move(problem, stage, region)
    return _acquire(problem, stage, region)


def _other_level(stage: Stage, region: Box) -> Proposal:
    """Return the incumbent at the level farthest from its own: the contrast tells compute from transfer."""
    low, high = (corner.level or 1.0 for corner in region.corners(stage.incumbent))
    current = stage.incumbent.level or 1.0
    farthest = low if current / low > high / current else high
    return stage.incumbent.model_copy(update={"level": farthest}), "move"


def _move(problem: Problem, stage: Stage, region: Box) -> Proposal | None:
    """Return the first of up, down (and the same for the other axes) that is new; those go first every other stage."""
    start = stage.incumbent
    rates = [start.model_copy(update={"learning_rate": start.learning_rate * factor}) for factor in (2.0, 0.5, 0.25)]
    others = [
        start.model_copy(update={axis.name: axis.times(getattr(start, axis.name), factor)})
        for axis in region.axes[1:]
        for factor in (2.0, 0.5)
    ]
    moves = [*others, *rates] if stage.index % 2 == 0 else [*rates[:2], *others, rates[2]]
    diverged = diverged_values(stage)
    allowed = (region.clip(values) for values in moves)
    new = (values for values in allowed if not is_barred(values, diverged) and not _was_tried(stage, values))
    values = next(new, None)
    return None if values is None else (values, "move")


# -- common ----------------------------------------------------------------------------------------


def _acquire(problem: Problem, stage: Stage, region: Box) -> Proposal | None:
    """Return the most promising point of `region` by the surrogate, or a space-filling one without it."""
    outer, like = _outer(problem, stage, region), stage.incumbent
    bounds = np.array([outer.to_unit(corner) for corner in region.corners(like)])
    diverged = diverged_values(stage)

    def legal(cloud: Array) -> Array:
        snapped = outer.snap(cloud)
        values = [outer.from_unit(point.tolist(), like) for point in snapped]
        free = [not is_barred(value, diverged) and not _was_tried(stage, value) for value in values]
        return np.asarray(snapped[np.array(free, bool)])

    # a function of where the run stands, not of how it got there: a restored controller asks the same
    seed = (problem.seed * 1_000_003 + stage.index * 1_009 + len(stage.tried)) % 2**31
    surrogate = evidence(stage).surrogate(outer, problem.opening)
    if surrogate is None:
        free = legal(sobol_points(16, bounds, seed=seed))
        return (outer.from_unit(free[0].tolist(), like), "sobol") if len(free) else None
    pending = np.array([outer.to_unit(candidate.values) for candidate in stage.pending])
    point = next_point(surrogate, bounds, pending=pending, legal=legal, seed=seed)
    return None if point is None else (outer.from_unit(point.tolist(), like), "acquisition")


def _outer(problem: Problem, stage: Stage, region: Box) -> Box:
    """Return the box whose unit cube the surrogate works in: all that is known, and all that may be asked."""
    known = [*evidence(stage).values, *(candidate.values for candidate in stage.pending)]
    return bounding_box(problem, known, region)


def _was_tried(stage: Stage, values: Values) -> bool:
    return any(are_within(values, each.values, SAME_VALUES) for each in stage.tried)


def _within(first: float, second: float, factor: float) -> bool:
    return max(first, second) <= factor * min(first, second)


def _clip_rate(problem: Problem, rate: float) -> float:
    return min(problem.space.max_learning_rate, max(problem.space.min_learning_rate, rate))
