"""Estimate the best rate of a run from a wide search.

- Coarse probes give a place on the plateau of rates that train.
- Finalists along one axis give the vertex of a parabola through the best one and its neighbours.
- Finalists on several axes give the highest posterior mean: on a lattice of legal values, then along each axis in turn.
"""

import math
import statistics
from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from search.bayesian.rewards import diverged_values, scores, start_loss
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import Probe, Score, Stage, is_barred
from search.bayesian.usual_rate import expected_rate, past_tells, trusted_rate, usual_rate
from search.budget import spending
from search.curves.forecast import size_of
from search.past_jobs.transfer import worth_of_divergence
from search.space import AnyAxis, Axis, Box
from search.surrogate.model import AnySurrogate
from search.types import Values

#: Losses on the same batch that differ by a smaller share do not tell two probes apart.
LEAST_PROGRESS = 0.001
#: Coarse probes say less than the usual rate if none gains more than `WEAK_GAIN` over the lowest rate, and the log loss
#: falls by less than `WEAK_FALL`, which batches alone can cause, or the next rate falls alike. The usual rate may do
#: harm at first, but less than `HARM_OF_USUAL`: else the model may have been trained before (docs/decisions/0044).
WEAK_GAIN, WEAK_FALL, HARM_OF_USUAL = 0.02, 0.15, 0.7
#: With fewer probes, the best rate may lie between the two lowest ones, which would then be alike as well.
LEAST_SPAN = 4
#: The plateau holds the rates that gain at least this share of what the best one gains.
PLATEAU = 0.7
#: The usual rate draws a run's rate above the plateau by at most this factor.
MOST_ABOVE = 1.8
#: `OptimizerTraits.pick` holds for runs of this many steps; longer ones may need a lower rate.
PICK_STEPS = 300
#: A second peak at a higher rate must be better by this share of its gain.
TWIN_SHARE = 0.15
#: A loss jumps if it lies above that of a lower rate on the same batch by this share of the loss at the start.
JUMP = 0.08
#: If probes saw different batches, a difference counts if noise alone shows it with less than this probability.
DOUBT = 0.05
#: A smaller rise of the log loss does no harm.
HARM = 0.005
#: A larger fall of the loss, in its logarithm or as a share, shows that a rate trains.
LEAST_GAIN = 0.05
#: Points on a line of learning rates (4 decades / 200: steps of about 5 %), and on a line of another axis.
NUM_RATES, NUM_OTHERS = 201, 17
#: The most rounds of line searches: more than a posterior of a dozen probes needs.
MAX_ROUNDS = 8


def vertex(rates: Sequence[float], rewards: Sequence[float]) -> float | None:
    """Return the rate at the vertex of the parabola, in log rate, through the best probe and its two neighbours.

    None if the best probe has the lowest or the highest rate, or is no better than its neighbours.
    """
    if len(rates) < 3:
        return None
    order = np.argsort(rates)
    x, y = np.log(np.asarray(rates)[order]), np.asarray(rewards)[order]
    best = lowest_peak(y)
    if not 0 < best < len(y) - 1:
        return None
    left, right = (x[best - 1], x[best + 1])
    rise = (y[best] - y[best - 1]) / (x[best] - left)
    fall = (y[best] - y[best + 1]) / (right - x[best])
    if not rise + fall > 0:
        return None
    # `rise` and `fall` are the parabola's slopes half-way between two probes.
    middle = (left + x[best]) / 2
    peak = middle + (right - left) / 2 * rise / (rise + fall)
    return float(np.exp(np.clip(peak, left, right)))


def lowest_peak(rewards: NDArray[np.float64]) -> int:
    """Return the index of the best of `rewards`, which are in order of the rates. Of two peaks, take the lower rate.

    The lower peak is passed over only if it is clearly worse: near the highest rate that trains, luck makes peaks.
    """
    best = int(np.argmax(rewards))
    clearly = TWIN_SHARE * abs(float(rewards[best]))
    peaks = (
        index
        for index in range(best)
        if rewards[index] > rewards[index + 1] and rewards[index] >= rewards[best] - clearly
    )
    return next(peaks, best)


def plateau(rates: Sequence[float], gains: Sequence[float | None]) -> tuple[float, float]:
    """Return the lowest and the highest rate between which the gain reaches `PLATEAU` of the best one.

    Gains are relative to the lowest rate that did not diverge, and interpolated in log rate. A rate that diverged
    counts as having lost as much as the best one gained, which is also the most that any lost. If the gain does not
    fall, the edge is the last rate. If no rate gained more than the lowest, the plateau holds those that are not
    clearly behind it.
    """
    order = np.argsort(rates)
    finite = [(rates[index], gain) for index in order if (gain := gains[index]) is not None]
    lowest, least = finite[0]
    top = max(gain for _, gain in finite) - least
    if top <= 0:
        return lowest, max(rate for rate, gain in finite if gain >= least - HARM)
    relative = [-top if gain is None else max(gain - least, -top) for gain in (gains[index] for index in order)]
    x, y = np.log(np.asarray(rates)[order]), np.array(relative)
    best = int(np.argmax(y))
    down, up = slice(best, None, -1), slice(best, None)
    return _edge(x[down], y[down], PLATEAU * top), _edge(x[up], y[up], PLATEAU * top)


def _edge(x: NDArray[np.float64], y: NDArray[np.float64], target: float) -> float:
    """Return the rate at which `y` first falls to `target`, along the log rates `x`."""
    below = np.flatnonzero(y < target)
    if not len(below):
        return float(np.exp(x[-1]))
    last = int(below[0])
    return float(np.exp(np.interp(target, y[[last, last - 1]], x[[last, last - 1]])))


def coarse_pick(setup: SearchSetup, stage: Stage) -> float:
    """Return the rate that a run should use, by coarse probes of which some did not diverge.

    If so few steps show no progress, it is the usual rate, or follows from the highest rate that does no harm. If a
    stated range ends on the plateau, the edge is unknown, and the middle of the plateau within the range is used.
    """
    larger_batch = setup.whole_batch_factor
    if not shows_progress(stage) or shows_too_little(setup, stage):
        harmless = harmless_rate(stage) * min(1.0, setup.traits.pick * larger_batch)
        trusted = trusted_rate(setup, stage)
        return setup.clip_rate(harmless if trusted is None else _for_batch(setup, trusted))
    low, high = plateau_of(stage)
    middle = math.sqrt(low * high)
    if setup.config.stated_rates is not None and high >= max(each.values.learning_rate for each in scores(stage)):
        return setup.clip_rate(middle)
    asked, usual = setup.traits.pick * middle * larger_batch, usual_rate(setup, stage)
    expected = expected_rate(asked, None if usual is None else _for_batch(setup, usual))
    return setup.clip_rate(min(expected, max(asked, MOST_ABOVE * high * larger_batch)))


def usual_pick(setup: SearchSetup, stage: Stage) -> float:
    """Return the rate that suits a run which `begins_as_usual`, though it may lie outside the space.

    It may be higher than usual for a larger batch, and lower for a long run.
    """
    rate = trusted_rate(setup, stage)
    assert rate is not None
    return _for_batch(setup, rate) * length_factor(setup, stage)


def _for_batch(setup: SearchSetup, usual: float) -> float:
    """Return the `usual` rate for a batch of all workers. One that the optimizer alone tells is that of any batch."""
    return usual if setup.traits.told_by == "optimizer" else usual * setup.whole_batch_factor


def length_factor(setup: SearchSetup, stage: Stage) -> float:
    """Return the factor by which a run of this length needs a lower rate than short probes do, in (0, 1].

    It is 1 for the highest rate that does no harm, which says nothing about the run.
    """
    is_known = shows_progress(stage) or trusted_rate(setup, stage) is not None
    longer = (run_steps(setup, stage) or PICK_STEPS) / PICK_STEPS
    return min(1.0, longer**-setup.traits.length_power) if is_known else 1.0


def run_steps(setup: SearchSetup, stage: Stage) -> float | None:
    """Return how many steps the budget holds, by the warm-up, or else by the cost of the probes; None: not known."""
    if setup.num_steps is not None:
        return setup.num_steps
    timed = [reading for reading in stage.readings.values() if reading.num_steps]
    costs = [spending.measured_step_cost(setup.budget, reading) for reading in timed]
    steps = [spending.num_steps(spending.caps(setup.budget), setup.line_cost(cost)) for cost in costs]
    known = [each for each in steps if math.isfinite(each)]
    return statistics.median(known) if known else None


def plateau_of(stage: Stage) -> tuple[float, float]:
    """Return the edges of the plateau that coarse probes found."""
    judged = scores(stage)
    return plateau([score.values.learning_rate for score in judged], [score.reward for score in judged])


def harmless_rate(stage: Stage) -> float:
    """Return the highest rate that does no harm, by probes that do not train yet.

    Where they saw other batches, it is the highest whose loss is not surely above that of the lowest rate.
    """
    judged = zip(stage.probes, scores(stage), strict=True)
    finite = [(probe, score.reward) for probe, score in judged if score.reward is not None]
    lowest, least = min(finite, key=lambda each: each[0].candidate.values.learning_rate)
    return max(
        probe.candidate.values.learning_rate
        for probe, reward in finite
        if (reward >= least - HARM if stage.is_paired else not _is_surely_above(-_gaps(probe, lowest), HARM))
    )


def shows_progress(stage: Stage) -> bool:
    """Return whether a rate trains better than the lowest one, over the last half and at its end: else no rate is best.

    If probes of one rung see the same batches, their differences come from the rate. Otherwise they may be noise, as
    may a fall of the loss, and must be larger.
    """
    sound = [probe for probe, score in zip(stage.probes, scores(stage), strict=True) if score.reward is not None]
    if not sound:
        return False
    lowest = min(sound, key=lambda probe: probe.candidate.values.learning_rate)
    best = max(score.reward for score in scores(stage) if score.reward is not None)
    if stage.is_paired:
        return best > LEAST_GAIN or any(_is_below(probe, lowest) for probe in sound)
    # where all train alike, so does the lowest rate; each comparison more is another chance for noise
    has_fallen = _is_surely_above(_falls(lowest, start_loss(stage) or 0.0), LEAST_GAIN)
    return has_fallen or any(_is_surely_above(_gaps(probe, lowest), LEAST_PROGRESS) for probe in sound)


def shows_too_little(setup: SearchSetup, stage: Stage) -> bool:
    """Return whether coarse probes gain so little that the weights' usual rate is better known, and do little harm."""
    usual = trusted_rate(setup, stage) if setup.traits.told_by == "weights" else None
    finite = sorted((each.values.learning_rate, each.reward) for each in scores(stage) if each.reward is not None)
    if usual is None or len(finite) < 2:
        return False
    rates, rewards = np.array(finite).T
    gains = rewards - rewards[0]
    are_alike = len(stage.probes) >= LEAST_SPAN and abs(gains[1]) < WEAK_GAIN
    is_flat = gains.max() < WEAK_GAIN and (rewards.max() < WEAK_FALL or are_alike)
    is_harmless = np.interp(math.log(usual), np.log(rates), gains) > -HARM_OF_USUAL
    return bool(is_flat and is_harmless)


def _is_below(probe: Probe, other: Probe) -> bool:
    half = _gaps(probe, other)
    return bool(len(half) and half.mean() > LEAST_PROGRESS and half[-1] > LEAST_PROGRESS)


def _gaps(probe: Probe, other: Probe) -> NDArray[np.float64]:
    """Return the shares `(m,)` by which a probe lies below another, in the last half of the steps that both have."""
    num_both = min(len(probe.reading.losses), len(other.reading.losses))
    losses, others = (np.asarray(each.reading.losses[:num_both]) for each in (probe, other))
    sizes = np.abs(others)
    if min(losses.min(initial=0.0), others.min(initial=0.0)) < 0:  # zero means nothing, so one size is for all
        sizes[:] = size_of(float(np.median(others)), losses, others)
    gaps: NDArray[np.float64] = (others - losses) / np.where(sizes > 0, sizes, 1.0)
    return gaps[num_both // 2 :]


def _falls(probe: Probe, start: float) -> NDArray[np.float64]:
    """Return the shares `(m,)` by which the last half of a probe lies below the loss that its stage started at."""
    losses = np.asarray(probe.reading.losses)
    return (start - losses[len(losses) // 2 :]) / (size_of(start, losses) or 1.0)


def parabola_peak(setup: SearchSetup, stage: Stage) -> Values | None:
    """Return the values at the vertex of the stage's probes with the exchange that the run opens with.

    None if more than the rate and the exchange is searched, or past jobs inform the search: then the posterior knows
    more. None too if there is no vertex, or it is barred.
    """
    if setup.space.ranges or past_tells(setup, stage):
        return None
    judged = [score for score in steady_scores(stage) if score.values.option == setup.opening.option]
    finite = [score for score in judged if score.reward is not None]
    if not finite:
        return None
    low, _ = worth_of_divergence([score.reward or 0.0 for score in finite])
    rewards = [low if score.reward is None else score.reward for score in judged]
    rate = vertex([score.values.learning_rate for score in judged], rewards)
    values = None if rate is None else finite[0].values.model_copy(update={"learning_rate": rate})
    return None if values is None or is_barred(values, diverged_values(stage)) else values


def steady_scores(stage: Stage) -> list[Score]:
    """Return the scores of `stage`, without a reward for a finalist that jumps.

    A finalist jumps if in its last third a loss lies clearly above that of the next lower rate on the same batch, with
    all other values equal. If the two saw different batches, the means of their last thirds are compared. Such a rate
    is at the edge of what trains, and a longer run would go over it. Earlier losses only show that a high rate
    overshoots at first.
    """
    found, start = scores(stage), start_loss(stage)
    by_rate = sorted(range(len(found)), key=lambda index: found[index].values.learning_rate)
    steady, below = list(found), None
    for index in by_rate:
        probe = stage.probes[index]
        if found[index].reward is None or not probe.candidate.rung:
            continue
        if below is not None and _jumps(probe, below, start=start or 0.0, is_paired=stage.is_paired):
            steady[index] = found[index]._replace(reward=None)
        else:
            below = probe
    return steady


def _jumps(probe: Probe, below: Probe, *, start: float, is_paired: bool) -> bool:
    values, other = probe.candidate.values, below.candidate.values
    if values.model_copy(update={"learning_rate": other.learning_rate}) != other:
        return False  # another value may cause the jump
    losses, others = (np.asarray(each.reading.losses) for each in (probe, below))
    num_points = min(len(losses), len(others))
    last = slice(2 * num_points // 3, num_points)
    gaps, least = losses[last] - others[last], JUMP * size_of(start, losses, others)
    return _is_surely_above(gaps, least) if not is_paired else bool(np.any(gaps > least))


def _is_surely_above(gaps: NDArray[np.float64], least: float) -> bool:
    # by Student's t, as there are few gaps; a single one shows nothing
    if len(gaps) < 2:
        return False
    error = gaps.std(ddof=1) / math.sqrt(len(gaps))
    return bool(gaps.mean() - least > stdtrit(len(gaps) - 1, 1 - DOUBT) * error)


def interpolated_peak(
    surrogate: AnySurrogate, box: Box, tried: Sequence[Values], *, barred: tuple[Values, ...]
) -> Values | None:
    """Return the values with the highest posterior mean inside the range of `tried`; None: all of it is barred."""
    axes = [axis.among([getattr(each, axis.name) for each in tried]) for axis in box.axes]
    best = partial(_best_of, surrogate, box, barred=barred)
    peak = best([_with(start, axes[0], rate) for rate in _line(axes[0]) for start in _settings(axes[1:], tried)])
    for _ in range(MAX_ROUNDS):
        before = peak
        for axis in axes:
            peak = peak and best([peak, *(_with(peak, axis, value) for value in _line(axis))])
        if peak == before:
            break
    return peak


def at_best_option(
    surrogate: AnySurrogate, box: Box, peak: Values, tried: Sequence[Values], *, barred: tuple[Values, ...]
) -> Values:
    """Return `peak` with the tried exchange that has the highest posterior mean there."""
    options = dict.fromkeys(values.option for values in tried)
    cells = [peak.model_copy(update={"option": option}) for option in options]
    return _best_of(surrogate, box, cells, barred=barred) or peak


def _best_of(
    surrogate: AnySurrogate, box: Box, cells: Sequence[Values], *, barred: tuple[Values, ...]
) -> Values | None:
    """Return the one of `cells` with the highest posterior mean; None: all are barred."""
    free = [values for values in cells if not is_barred(values, barred)]
    means = surrogate.mean(np.array([box.to_unit(values) for values in free])) if free else np.zeros(0)
    return free[int(np.argmax(means))] if free else None


def _line(axis: AnyAxis) -> list[Any]:
    if isinstance(axis, Axis) and axis.name == "learning_rate":
        return [float(rate) for rate in np.geomspace(axis.low, axis.high, NUM_RATES)]
    return list(axis.grid(NUM_OTHERS))


def _settings(axes: Sequence[AnyAxis], tried: Sequence[Values]) -> list[Values]:
    """Return a lattice over `axes`, with about as many cells as a line has points, and the values `tried`."""
    num_points = max(3, math.floor(NUM_OTHERS ** (1 / len(axes)))) if axes else 1
    cells = product(*(axis.grid(num_points) for axis in axes))
    lattice = [
        tried[0].model_copy(update={axis.name: value for axis, value in zip(axes, cell, strict=True)}) for cell in cells
    ]
    return lattice + (list(tried) if len(axes) > 1 else [])


def _with(values: Values, axis: AnyAxis, value: object) -> Values:
    return values.model_copy(update={axis.name: value})
