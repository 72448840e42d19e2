"""Propose the next candidates: pure functions of the setup and the open stage."""

import math
from functools import partial
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from search.bayesian.coarse_plan import coarse_plan
from search.bayesian.exchange_shortlist import promising
from search.bayesian.regions import bounding_box, trust_region
from search.bayesian.rewards import any_sound, diverged_values, evidence, scores, surrogate_of
from search.bayesian.setup import MAX_EXTENSIONS, SearchSetup
from search.bayesian.stage import FINAL_RUNG, Proposal, Score, Stage, is_barred
from search.bayesian.usual_rate import begins_as_usual, trusted_rate
from search.bayesian.wide_optimum import (
    LEAST_PROGRESS,
    coarse_pick,
    lowest_peak,
    parabola_peak,
    shows_progress,
    steady_scores,
)
from search.budget.link import MIN_CONTRAST
from search.budget.spending import fraction_spent
from search.config import FINALISTS
from search.space import Box, OptionAxis, are_within, distance
from search.surrogate.acquisition import next_point, sobol_points
from search.surrogate.model import MIN_POINTS, NUMERICAL_FAILURES, described
from search.types import Candidate, Origin, Refusal, Values

Array = NDArray[np.float64]
#: Skip an extension that is clipped below this factor.
LEAST_EXTENSION = 1.5
#: If an end of the finalists' range does best, it is extended once: one more finalist has room.
MAX_FINALIST_EXTENSIONS = 1
#: The factor between the rates of neighbouring finalists: if the rate is the only range, and else.
RATE_STEP, JOINT_STEP = math.sqrt(10), 2.0
#: From this share of the budget on, a search tries no higher rate: a probe does not see slow divergence.
LAST_RISE = 0.5
#: Values within this factor of tried ones count as tried.
TRIED_FACTOR = 1.02
#: A rate within this factor of a tried one is not worth a probe at the vertex.
SAME_RATE = 1.15


def propose(setup: SearchSetup, stage: Stage) -> Proposal | None:
    """Return the next values to try in `stage`, or None if it has tried enough, or has no reason to search."""
    if not stage.has_incumbent:
        return _propose_wide(setup, stage)
    has_reason = setup.config.revisit == "stages" or bool(stage.line.events) or stage.steered.search_asked
    return _propose_local(setup, stage) if has_reason else None


# -- the wide search -------------------------------------------------------------------------------


def _propose_wide(setup: SearchSetup, stage: Stage) -> Proposal | None:
    """Compare decades by coarse probes, then train finalists around their pick for longer, if any are wanted.

    Propose nothing if the run begins with the usual rate.
    """
    if begins_as_usual(setup, stage):
        return None
    is_coarse = _is_coarse(stage)
    proposal = (_planned_coarse(setup, stage) or _coarse_extension(setup, stage)) if is_coarse else None
    if proposal is not None or (is_coarse and (stage.pending or not any_sound(stage))):
        return proposal
    return _propose_finalist(setup, stage)


def _is_coarse(stage: Stage) -> bool:
    return all(each.origin == "wide" for each in stage.tried)


def _planned_coarse(setup: SearchSetup, stage: Stage) -> Proposal | None:
    diverged, tried = diverged_values(stage), [each.values for each in stage.tried]
    left = [values for values in coarse_plan(setup, stage) if values not in tried and not is_barred(values, diverged)]
    return Proposal(left[0], "wide") if left else None


def _coarse_extension(setup: SearchSetup, stage: Stage) -> Proposal | None:
    if stage.pending or len(stage.tried) >= len(coarse_plan(setup, stage)) + MAX_EXTENSIONS:
        return None
    extension = _extension(setup, stage, 10.0)
    return None if extension is None else Proposal(extension, "wide")


def _propose_finalist(setup: SearchSetup, stage: Stage) -> Proposal | None:
    rung = FINAL_RUNG
    plan, finalists, diverged = finalist_plan(setup, stage), stage.at(rung), diverged_values(stage)
    refused = [each for each in stage.refused if each.origin != "wide"]
    asked: list[Candidate | Refusal] = [*finalists.candidates, *refused]
    own = [each for each in asked if each.values.option == setup.opening.option]
    tried = [each.values for each in own]
    left = [values for values in plan if values not in tried and not is_barred(values, diverged)]
    extensions = [each for each in own if each.origin == "finalist" and each.values not in plan]
    num_refused = len(refused) + sum(each.origin != "wide" for each in stage.too_slow.values())
    knows_rate = shows_progress(stage.at(0)) or trusted_rate(setup, stage.at(0)) is not None
    first = setup.rate_probes or (0 if knows_rate else FINALISTS)
    wanted = first + min(first, num_refused)  # refused ones are replaced
    if left and len(own) < wanted:
        return Proposal(left[0], "finalist", rung)
    if not stage.pending and len(extensions) < MAX_FINALIST_EXTENSIONS:
        extension = _extension(setup, finalists, _finalist_step(setup))
        if extension is not None:
            return Proposal(extension, "finalist", rung)
    if len(own) - len(extensions) < wanted:
        found = _at_the_vertex(setup, finalists) or (
            _acquire(setup, finalists, _around_finalists(setup, tried)) if own else None
        )
        return found and found._replace(rung=rung)
    option = _untried_option(setup, finalists)
    return option and option._replace(rung=rung)


def finalist_plan(setup: SearchSetup, stage: Stage) -> list[Values]:
    """Return the first finalists: the rate that the coarse probes pick, one above it and one below.

    A searched level is the opening one at the picked rate, lower above it and higher below it: further finalists must
    tell rate and level apart. Further axes begin where the run opens, then are spread over their ranges (Sobol).
    """
    centre = coarse_pick(setup, stage.at(0))
    rates = [setup.clip_rate(centre * _finalist_step(setup) ** step) for step in (0, 1, -1)]
    levels = _alternating_levels(setup, [0, 1, 2])
    return [
        spread.model_copy(update={"learning_rate": rate, "level": level})
        for rate, level, spread in zip(rates, levels, _spread(setup, len(rates)), strict=True)
    ]


def _finalist_step(setup: SearchSetup) -> float:
    return JOINT_STEP if setup.space.ranges else RATE_STEP


def _around_finalists(setup: SearchSetup, tried: list[Values]) -> Box:
    """Return the box around the values `tried`, with the exchange that the run opens with."""
    axes = bounding_box(setup, tried).axes
    opening = [setup.opening.option or ""]
    return Box(axes=tuple(axis.among(opening) if isinstance(axis, OptionAxis) else axis for axis in axes))


def _spread(setup: SearchSetup, num_points: int) -> list[Values]:
    """Return the opening values, then others that fill the ranges of the further axes."""
    opening, axes = setup.opening, setup.space.further
    if not axes:
        return [opening] * num_points
    box = Box(axes=axes)
    unit_cube = np.array([[0.0] * len(axes), [1.0] * len(axes)])
    points = sobol_points(num_points - 1, unit_cube, seed=setup.seed)
    return [opening, *(box.from_unit(point.tolist(), opening) for point in points)]


def _alternating_levels(setup: SearchSetup, distances: list[int]) -> list[float | None]:
    level, axis = setup.opening.level, setup.space.axis("level")
    if level is None or axis is None:
        return [level] * len(distances)
    reach = axis.around(level, setup.config.max_level_move)
    low, high = math.sqrt(level * reach.low), math.sqrt(level * reach.high)
    return [level if distance == 0 else (low, high)[(distance + 1) % 2] for distance in distances]


def _untried_option(setup: SearchSetup, stage: Stage) -> Proposal | None:
    """Return the best rate so far with an exchange that was not tried: first the nearest to the opening one."""
    options, tried = setup.space.options, [each.values.option for each in stage.tried if each.origin != "wide"]
    left = [option for option in options if option not in tried]
    judged = scores(stage) if left else ()
    finite = [(score.reward, score.values) for score in judged if score.reward is not None]
    if not finite:
        return None
    opening = options.index(setup.opening.option or "")
    option = min(left, key=lambda each: abs(options.index(each) - opening))
    best = parabola_peak(setup, stage) or max(finite, key=itemgetter(0))[1]
    return Proposal(best.model_copy(update={"option": option}), "option")


def _at_the_vertex(setup: SearchSetup, stage: Stage) -> Proposal | None:
    """Return the vertex of the best three probes, unless it is near a tried rate, or another probe is running."""
    if stage.pending or not setup.config.has_surrogate:
        return None
    peak = parabola_peak(setup, stage)
    is_known = peak is not None and any(are_within(peak, each.values, SAME_RATE) for each in stage.tried)
    return None if peak is None or is_known else Proposal(peak, "vertex")


def _extension(setup: SearchSetup, stage: Stage, factor: float) -> Values | None:
    """Return a point `factor` beyond the end of the range that did best; below it if everything diverged.

    Only probes with the exchange that the run opens with count: the others have one probe each. None if neither end did
    best, if the point was tried, refused or diverged, or if the lowest rate only seems best because none trains.
    """
    own = [score for score in steady_scores(stage) if score.values.option == setup.opening.option]
    if not own:
        return None
    tried = sorted(own, key=lambda score: score.values.learning_rate)
    best = tried[lowest_peak(np.array([-math.inf if score.reward is None else score.reward for score in tried]))]
    if best is not tried[0] and best is not tried[-1]:
        return None
    if best is tried[0] and best.reward is not None and not (len(tried) > 1 and _is_worse(tried[1], best)):
        return None
    step = 1 / factor if best is tried[0] else factor
    values = best.values.model_copy(update={"learning_rate": setup.clip_rate(best.values.learning_rate * step)})
    is_known = _are_near(values.learning_rate, best.values.learning_rate, LEAST_EXTENSION) or _was_tried(stage, values)
    return None if is_known or is_barred(values, diverged_values(stage)) else values


def _is_worse(score: Score, best: Score) -> bool:
    """Return whether a higher rate did clearly worse than the best one, at the lower end."""
    return score.reward is None or best.reward is None or best.reward - score.reward > LEAST_PROGRESS


# -- a later stage ---------------------------------------------------------------------------------


def _propose_local(setup: SearchSetup, stage: Stage) -> Proposal | None:
    asked = len(stage.tried)
    if asked == 0:
        return Proposal(stage.incumbent, "incumbent")
    if asked >= setup.config.probes or not stage.candidates:  # without its control it decides nothing
        return None
    may_rise = stage.course.may_rise and fraction_spent(setup.budget, stage.opened) < LAST_RISE
    region = trust_region(setup, stage.incumbent, may_rise=may_rise, width=stage.width)
    if asked == 1 and "step_time" in stage.line.events and (other := _other_exchange(setup, stage, region)):
        return other
    if stage.lacks_control:
        return None
    knows_little = setup.config.kind == "bo" and evidence(stage).num_finite < MIN_POINTS
    if setup.config.kind == "local" or knows_little:
        return _move(setup, stage, region)
    return _acquire(setup, stage, region)  # `sobol` has no surrogate: its points fill the region


def _other_exchange(setup: SearchSetup, stage: Stage, region: Box) -> Proposal | None:
    """Return the incumbent at another level, or with another exchange: the contrast tells compute from transfer.

    It is sparser if steps take longer than before: that is cheaper, and suits the link. If the link is known, it is the
    exchange that a run would open with now. None: neither is searched.
    """
    assert stage.line.before is not None  # its signs showed the event
    start, signs = stage.incumbent, stage.line.before.signs
    is_slower = (signs.slower or 1.0) > 1
    for axis, _ in region.spans():
        if axis.name == "level":
            sparse, dense = setup.space.sparse_first(axis)
            ends = (sparse, dense) if is_slower else (dense, sparse)
            level = ends[1] if _are_near(ends[0], start.level or 1.0, MIN_CONTRAST) else ends[0]
            return Proposal(start.model_copy(update={"level": level}), "move")
        if axis.name == "option":
            neighbour = axis.moves(start.option)[-1 if is_slower else 0]  # from dense to sparse
            option = promising(setup, stage)
            chosen = neighbour if option in (None, start.option) else option
            return Proposal(start.model_copy(update={"option": chosen}), "move")
    return None


def _move(setup: SearchSetup, stage: Stage, region: Box) -> Proposal | None:
    """Return the first new move: the rate up or down, or another axis. The other axes go first in every second stage.

    Up and down go to the region's ends. Half-way down, in logarithms, comes before all the way, and so do other axes.
    """
    config, start = setup.config, stage.incumbent
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
    return None if values is None else Proposal(values, "move")


# -- common ----------------------------------------------------------------------------------------


def _acquire(setup: SearchSetup, stage: Stage, region: Box) -> Proposal | None:
    """Return the most promising point of `region` by the surrogate, or a space-filling one without it."""
    known = [*evidence(stage).values, *(candidate.values for candidate in stage.pending)]
    # the surrogate works in the unit cube around all known values and the region
    outer, like = bounding_box(setup, known, region), stage.incumbent
    bounds = outer.bounds(region)
    diverged = diverged_values(stage)

    def is_legal(point: Array) -> bool:
        return _is_open(stage, outer.from_unit(point.tolist(), like), diverged)

    # seeds depend on where the run stands, not on how it got there: a restored controller asks the same
    stage_seed = (setup.seed * 1_000_003 + stage.index * 1_009) % 2**31
    surrogate = surrogate_of(setup, stage, outer)
    if surrogate is None:
        # one sequence per stage, so its points keep their distance
        cloud = outer.snap(sobol_points(32, bounds, seed=stage_seed))
        free = next(filter(is_legal, cloud), None)
        return None if free is None else Proposal(outer.from_unit(free.tolist(), like), "sobol")
    seed = (stage_seed + len(stage.tried)) % 2**31
    pending = np.array([outer.to_unit(candidate.values) for candidate in stage.pending])
    ask = partial(next_point, bounds=bounds, pending=pending, snap=outer.snap, is_legal=is_legal, seed=seed)
    try:
        point = ask(surrogate)
    except NUMERICAL_FAILURES as error:
        surrogate = surrogate.plain(described(error))
        point = ask(surrogate)
    origin: Origin = "fallback" if surrogate.note else "acquisition"
    return None if point is None else Proposal(outer.from_unit(point.tolist(), like), origin)


def _is_open(stage: Stage, values: Values, diverged: tuple[Values, ...]) -> bool:
    """Return whether `values` are new, not barred by diverged ones, and nearer to the incumbent than to a rejected."""
    own = distance(values, stage.incumbent)
    is_rejected = any(distance(values, other) < own for other in stage.rejected)
    return not (is_rejected or is_barred(values, diverged) or _was_tried(stage, values))


def _was_tried(stage: Stage, values: Values) -> bool:
    return any(are_within(values, each.values, TRIED_FACTOR) for each in stage.tried)


def _are_near(first: float, second: float, factor: float) -> bool:
    return max(first, second) <= factor * min(first, second)
