"""What a stage tries next: pure functions of the problem and the open stage."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from search.acquisition import next_point, sobol_points
from search.decision import bounding_box, trust_region
from search.evidence import diverged_values, evidence, scores, surrogate_of
from search.link import MIN_CONTRAST
from search.listing import promising
from search.peak import parabola_peak
from search.prior import NO_PRIOR, Prior
from search.probe_costs import MIN_WIDE_PROBES
from search.space import Box, OptionAxis, are_within, distance
from search.spending import fraction_spent
from search.stage import Problem, Stage, is_barred
from search.surrogate import MIN_POINTS, NUMERICAL_FAILURES, described
from search.transfer import best_rate
from search.types import Origin, Values

Array = NDArray[np.float64]
Proposal = tuple[Values, Origin]

#: An extension that the space cuts to less than this factor is none.
LEAST_EXTENSION = 1.5
#: End points of the range that turn out best are extended, at most this often.
MAX_EXTENSIONS = 2
#: From this share of the budget on, a learning rate no longer rises: a short probe does not see slow divergence.
LAST_RISE = 0.5
#: The past is confirmed by so many probes about its best rate, if it explains them with this probability.
BRACKET = 3
CONFIRMED = 0.5
#: That spares so many probes of the rate alone; a past that is not confirmed has moved the grid for nothing, and costs.
SPARED, DETOUR = 2, 1
#: Values closer than this were tried already.
SAME_VALUES = 1.02
#: ... and with less than this between two rates, a probe between them would tell little.
SAME_RATE = 1.15


def propose(problem: Problem, stage: Stage) -> Proposal | None:
    """Return what to try next in `stage`, or None if it has tried enough, or has no reason to search."""
    if not stage.has_incumbent:
        return _propose_wide(problem, stage)
    return _propose_local(problem, stage) if problem.config.revisit == "stages" or stage.events else None


# -- the wide search -------------------------------------------------------------------------------


def wide_plan(problem: Problem, prior: Prior = NO_PRIOR) -> list[Proposal]:
    """Return the wide search's opening: a grid of learning rates, most central first.

    Where past runs say which rate is best the grid is moved by up to half a step, so that it holds that rate, and
    starts from there. Where the level is searched too it alternates between both sides of the opening level, low next
    to the start and high beyond, so that rate and level are not confounded. Further axes start from where the run
    opens, and are then spread over their ranges (Sobol).
    """
    rates = _grid(problem)
    past = _past_rate(problem, prior, rates)
    start = (len(rates) - 1) / 2
    if past is not None:
        start = min(range(len(rates)), key=lambda index: abs(math.log(rates[index] / past)))
        rates = [_clip_rate(problem, rate * (past / rates[start])) for rate in rates]
    order = sorted(range(len(rates)), key=lambda index: abs(2 * (index - start) + 0.1))
    levels = _alternating_levels(problem, [int(abs(index - start)) for index in range(len(rates))])
    plan: list[Proposal] = [
        (spread.model_copy(update={"learning_rate": rates[index], "level": levels[index]}), "wide")
        for index, spread in zip(order, _spread(problem, len(rates)), strict=True)
    ]
    return plan


def _grid(problem: Problem) -> list[float]:
    low, high = problem.config.stated_rates or _rates_around_guess(problem)
    decades = round(math.log10(high / low), 6)  # whole ones, however the ends are rounded
    num_points = max(3, min(math.floor(decades) + 1, problem.config.wide_probes - 1))
    return [float(rate) for rate in np.geomspace(low, high, num_points)]


def _rates_around_guess(problem: Problem) -> tuple[float, float]:
    centre = _clip_rate(problem, problem.opening.learning_rate * problem.traits.centre)
    half = 10 ** (problem.config.wide_decades / 2)
    return _clip_rate(problem, centre / half), _clip_rate(problem, centre * half)


def _past_rate(problem: Problem, prior: Prior, rates: list[float]) -> float | None:
    """Return the rate that past runs found best; None: they say nothing, or it lies beyond the grid of `rates`."""
    probed = [probe.values for search in prior.searches for probe in search.probes if probe.reward is not None]
    if not probed:
        return None
    box = bounding_box(problem, probed)
    past = best_rate(prior, box, box.to_unit(problem.opening))
    half_step = math.sqrt(rates[1] / rates[0])
    return past if past is not None and rates[0] / half_step <= past <= rates[-1] * half_step else None


def _spread(problem: Problem, num_points: int) -> list[Values]:
    """Return the opening values, and then some that fill the ranges of the further axes."""
    opening, axes = problem.opening, problem.space.further
    if not axes:
        return [opening] * num_points
    box = Box(axes=axes)
    unit_cube = np.array([[0.0] * len(axes), [1.0] * len(axes)])
    points = sobol_points(num_points - 1, unit_cube, seed=problem.seed)
    return [opening, *(box.from_unit(point.tolist(), opening) for point in points)]


def _alternating_levels(problem: Problem, distances: list[int]) -> list[float | None]:
    level, axis = problem.opening.level, problem.space.axis("level")
    if level is None or axis is None:
        return [level] * len(distances)
    reach = axis.around(level, problem.config.max_level_move)
    low, high = math.sqrt(level * reach.low), math.sqrt(level * reach.high)
    return [level if distance == 0 else (low, high)[(distance + 1) % 2] for distance in distances]


def _propose_wide(problem: Problem, stage: Stage) -> Proposal | None:
    plan = wide_plan(problem, stage.prior)
    closer = closer_plan(plan) if past_is_confirmed(problem, stage) else plan
    tried = [each.values for each in stage.tried]
    left = [proposal for proposal in closer if proposal[0] not in tried]
    if left:
        return left[0]
    planned = [values for values, _ in (*plan, *closer)]
    extensions = [each.values for each in stage.tried if each.origin == "wide" and each.values not in planned]
    if len(extensions) < MAX_EXTENSIONS and not stage.pending:
        extension = _extension(problem, stage)
        if extension is not None:
            return extension, "wide"
    wanted = _num_wide(problem, stage, is_confirmed=closer is not plan)
    refused = [each.values for each in (*stage.refused, *stage.too_slow.values())]
    own_refused = sum(values.option == problem.opening.option for values in refused)
    num_refused = min(wanted, own_refused)  # others are tried for these, in bounds
    own = [values for values in tried if values.option == problem.opening.option]
    if len(own) - len(extensions) < wanted + num_refused:
        return _at_the_vertex(problem, stage) or _acquire(problem, stage, _at_the_opening(problem, own))
    return _untried_option(problem, stage)


def _at_the_opening(problem: Problem, tried: list[Values]) -> Box:
    """Return the box around what was `tried`, at the exchange that the run opens with."""
    axes = bounding_box(problem, tried).axes
    opening = [problem.opening.option or ""]
    return Box(axes=tuple(axis.among(opening) if isinstance(axis, OptionAxis) else axis for axis in axes))


def _untried_option(problem: Problem, stage: Stage) -> Proposal | None:
    """Return the best rate so far at an exchange that was not tried; those most like the opening one come first."""
    options, tried = problem.space.options, [each.values.option for each in stage.tried]
    left = [option for option in options if option not in tried]
    finite = [score for score in scores(stage) if score.reward is not None] if left else []
    if not finite:
        return None
    opening = options.index(problem.opening.option or "")
    option = min(left, key=lambda each: abs(options.index(each) - opening))
    best = parabola_peak(problem, stage) or max(finite, key=lambda score: score.reward or -math.inf).values
    return best.model_copy(update={"option": option}), "option"


def _at_the_vertex(problem: Problem, stage: Stage) -> Proposal | None:
    """Return where the best three probes expect the peak, unless it is known or another probe is on its way there."""
    if stage.pending or not problem.config.has_surrogate:
        return None
    peak = parabola_peak(problem, stage)
    is_known = peak is not None and any(are_within(peak, each.values, SAME_RATE) for each in stage.tried)
    return None if peak is None or is_known else (peak, "vertex")


def _num_wide(problem: Problem, stage: Stage, *, is_confirmed: bool) -> int:
    """Return how many probes look for the rate, extensions apart: fewer where the past was right, more where not."""
    if is_confirmed:
        return max(MIN_WIDE_PROBES, problem.rate_probes - (0 if problem.space.ranges else SPARED))
    is_detour = _past_rate(problem, stage.prior, _grid(problem)) is not None
    return problem.rate_probes + DETOUR * is_detour


def past_is_confirmed(problem: Problem, stage: Stage) -> bool:
    """Whether the first three probes lie about the past's best rate, agree with the past, and find it best again."""
    start = replace(stage, candidates=stage.candidates[:BRACKET])
    if not stage.prior.searches or len(start.probes) < BRACKET:
        return False
    rates = [candidate.values.learning_rate for candidate in start.candidates]
    rewards = [-math.inf if score.reward is None else score.reward for score in scores(start)]
    if not min(rates) < rates[0] < max(rates) or not rewards[0] > max(rewards[1:]):
        return False
    known = evidence(start)
    return known.expectation(bounding_box(problem, known.values), problem.opening).weight >= CONFIRMED


def closer_plan(plan: list[Proposal]) -> list[Proposal]:
    """Return the first three of `plan`, and the next two moved to half a step above and below the first."""
    best, upper = plan[0][0].learning_rate, max(values.learning_rate for values, _ in plan[:BRACKET])
    half_step = math.sqrt(upper / best)
    return plan[:BRACKET] + [
        (values.model_copy(update={"learning_rate": best * factor}), origin)
        for (values, origin), factor in zip(plan[BRACKET:], (half_step, 1 / half_step), strict=False)
    ]


def _extension(problem: Problem, stage: Stage) -> Values | None:
    """Return a point a decade beyond the end of the range that did best; below it if everything diverged.

    None if it is not the end that did best, or if what is beyond was refused.
    """
    if not stage.probes:
        return None
    tried = sorted(scores(stage), key=lambda score: score.values.learning_rate)
    best = max(tried, key=lambda score: -math.inf if score.reward is None else score.reward)
    if best is not tried[0] and best is not tried[-1]:
        return None
    factor = 0.1 if best is tried[0] else 10.0
    rate = _clip_rate(problem, best.values.learning_rate * factor)
    values = best.values.model_copy(update={"learning_rate": rate})
    is_known = _within(rate, best.values.learning_rate, LEAST_EXTENSION) or _was_tried(stage, values)
    return None if is_known else values


# -- a later stage ---------------------------------------------------------------------------------


def _propose_local(problem: Problem, stage: Stage) -> Proposal | None:
    asked = len(stage.tried)
    if asked == 0:
        return stage.incumbent, "incumbent"
    if asked >= problem.config.probes or not stage.candidates:  # without its control it decides nothing
        return None
    may_rise = stage.may_rise and fraction_spent(problem.budget, stage.opened) < LAST_RISE
    region = trust_region(problem, stage.incumbent, may_rise=may_rise, width=stage.width)
    if asked == 1 and "step_time" in stage.events and (other := _other_exchange(problem, stage, region)):
        return other
    if stage.lacks_control:
        return None
    return _RIVALS[problem.config.kind](problem, stage, region)


def _promising(problem: Problem, stage: Stage, region: Box) -> Proposal | None:
    if evidence(stage).num_finite < MIN_POINTS:
        return _move(problem, stage, region)
    return _acquire(problem, stage, region)


def _other_exchange(problem: Problem, stage: Stage, region: Box) -> Proposal | None:
    """Return the incumbent at another level, or another exchange, since the contrast tells compute from transfer.

    At a lower one, or a sparser, if steps take longer than they did: it is cheaper, and where the link would lead.
    Where the link is known, the exchange that a run would open with now. None: neither is searched.
    """
    start, is_slower = stage.incumbent, _is_slower(stage)
    for axis, _ in region.spans():
        if axis.name == "level":
            ends = [axis.low, axis.high] if is_slower else [axis.high, axis.low]
            level = ends[1] if _within(ends[0], start.level or 1.0, MIN_CONTRAST) else ends[0]
            return start.model_copy(update={"level": level}), "move"
        if axis.name == "option":
            neighbour = axis.moves(start.option)[-1 if is_slower else 0]  # from dense to sparse
            option = promising(problem, stage)
            return start.model_copy(update={"option": neighbour if option in (None, start.option) else option}), "move"
    return None


def _is_slower(stage: Stage) -> bool:
    """Whether steps take longer than they did."""
    assert stage.before is not None  # it is its signs that showed an event
    signs = stage.before.signs
    return (signs.step_seconds or 0.0) > (signs.reference_seconds or 0.0)


def _move(problem: Problem, stage: Stage, region: Box) -> Proposal | None:
    """Return the first of up, down (and the same for other axes) that is new; the others go first every other stage.

    Up and down are the region's ends; half-way down, in logarithms, comes before all the way, and so do the others.
    """
    config, start = problem.config, stage.incumbent
    up, down = config.max_up**stage.width, config.max_down**stage.width
    half = config.max_level_move ** (stage.width / 2)
    rates = [start.model_copy(update={"learning_rate": start.learning_rate * x}) for x in (up, down**0.5, down)]
    others = [
        start.model_copy(update={axis.name: value})
        for axis, _ in [*region.spans()][1:]
        for value in axis.moves(getattr(start, axis.name), half)
    ]
    moves = [*others, *rates] if stage.index % 2 == 0 else [*rates[:2], *others, rates[2]]
    diverged = diverged_values(stage)
    allowed = (region.clip(values) for values in moves)
    values = next((values for values in allowed if _is_open(stage, values, diverged)), None)
    return None if values is None else (values, "move")


# -- common ----------------------------------------------------------------------------------------


def _acquire(problem: Problem, stage: Stage, region: Box) -> Proposal | None:
    """Return the most promising point of `region` by the surrogate, or a space-filling one without it."""
    outer, like = _outer(problem, stage, region), stage.incumbent
    bounds = outer.bounds(region)
    diverged = diverged_values(stage)

    def is_legal(point: Array) -> bool:
        return _is_open(stage, outer.from_unit(point.tolist(), like), diverged)

    # functions of where the run stands, not of how it got there: a restored controller asks the same
    stage_seed = (problem.seed * 1_000_003 + stage.index * 1_009) % 2**31
    surrogate = surrogate_of(problem, stage, outer)
    if surrogate is None:
        # one sequence for the stage: its points keep their distance
        cloud = outer.snap(sobol_points(32, bounds, seed=stage_seed))
        free = next(filter(is_legal, cloud), None)
        return None if free is None else (outer.from_unit(free.tolist(), like), "sobol")
    seed = (stage_seed + len(stage.tried)) % 2**31
    pending = np.array([outer.to_unit(candidate.values) for candidate in stage.pending])
    ask = partial(next_point, bounds=bounds, pending=pending, snap=outer.snap, is_legal=is_legal, seed=seed)
    try:
        point = ask(surrogate)
    except NUMERICAL_FAILURES as error:
        surrogate = surrogate.plain(described(error))
        point = ask(surrogate)
    origin: Origin = "fallback" if surrogate.note else "acquisition"
    return None if point is None else (outer.from_unit(point.tolist(), like), origin)


def _outer(problem: Problem, stage: Stage, region: Box) -> Box:
    """Return the box whose unit cube the surrogate works in: all that is known, and all that may be asked."""
    known = [*evidence(stage).values, *(candidate.values for candidate in stage.pending)]
    return bounding_box(problem, known, region)


def _is_open(stage: Stage, values: Values, diverged: tuple[Values, ...]) -> bool:
    """Whether `values` are new, unlike what diverged, and nearer to the incumbent than to what was rolled back."""
    own = distance(values, stage.incumbent)
    is_rejected = any(distance(values, other) < own for other in stage.rejected)
    return not (is_rejected or is_barred(values, diverged) or _was_tried(stage, values))


def _was_tried(stage: Stage, values: Values) -> bool:
    return any(are_within(values, each.values, SAME_VALUES) for each in stage.tried)


def _within(first: float, second: float, factor: float) -> bool:
    return max(first, second) <= factor * min(first, second)


def _clip_rate(problem: Problem, rate: float) -> float:
    return min(problem.space.max_learning_rate, max(problem.space.min_learning_rate, rate))


#: What a later stage tries beside the incumbent.
_RIVALS: dict[str, Callable[[Problem, Stage, Box], Proposal | None]] = {
    "bo": _promising,
    "sobol": _acquire,  # without a surrogate its points fill the region
    "local": _move,
}
