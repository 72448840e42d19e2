"""Detect faults of a committed line: a loss that rose above its best, or a model that died. Pure functions of a trace.

The functions compare the medians of windows of `WINDOW` points, counted from the end of the trace. A trace shorter than
two windows can show a dead model by its two halves, unless it is very short. A loss that blew up in a commit's last
points shows in a trace of any length.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from search.curves.forecast import is_usable, median, noise, size_of, standard_error

Array = NDArray[np.float64]

#: Points of a window, each a mean of equally many steps.
WINDOW = 20
#: Points of the shortest half of a short trace. A run's first commit may be that short, and only its rollback leads
#: back to the beginning of the run.
SHORTEST_WINDOW = 10
#: A loss is clearly above another by so many standard errors of both medians, and by this share of the run's first.
CLEAR_ERRORS, CLEAR_SHARE = 4.0, 0.05
#: ... or, of a loss that has fallen by orders of magnitude, by this factor and this share of the run's first loss.
CLEAR_FACTOR, LEAST_SHARE = 30.0, 0.001
#: Within this share of the run's first loss nothing was learned: the loss of an ignorant model also varies.
IGNORANCE_SHARE = 0.05
#: A loss shows that something, or nothing, was learned only if it is this many standard errors on one side.
SURE_ERRORS = 2.0
#: A loss without noise is still flat if it falls between two windows by this share of the run's first.
FLAT_SHARE = 0.002
#: A gradient has vanished if it fell to this share of its scale at the beginning of the run.
VANISHED = 1e-3
#: A loss has blown up if this many points at the end of a commit are above the start, by this multiple of the run's
#: first loss.
BLOWN_POINTS, BLOWN_UP = 3, 10.0
#: A commit that lost this share of its gain is rolled back; one that lost less goes on.
LOST_SHARE = 0.5


class LossLevel(NamedTuple):
    """The median loss of a window, its standard error, and the window's lower quartile."""

    loss: float
    error: float
    low: float = -math.inf  # not known


class Probed(NamedTuple):
    """The mean loss of a probe's last steps, and their number."""

    loss: float
    num_points: int


class Known(NamedTuple):
    """The references that a commit is compared with. None: not known."""

    start: float | None = None  # the loss at which the commit started
    initial: float | None = None  # the loss at which the run started
    best: LossLevel | None = None  # the lowest that the committed line had reached before
    probed: Probed | None = None  # the lowest that a probe of the run ended at
    gradient_scale: float | None = None  # at the beginning of the run
    first: float | None = None  # the loss before the run's first step
    unit: float = 0.0  # the size of the run's loss, which shares of it multiply


class Fault(NamedTuple):
    """The faults of a commit."""

    has_worsened: bool = False  # the loss rose clearly above the best of the run, and does not come back
    is_dead: bool = False  # the model does not learn any more
    is_ignorant: bool = False  # surely nothing was learned yet, and nothing is being learned
    has_learned: bool = False  # the loss was surely below that of a model that has learned nothing
    has_risen: bool = False  # its end is clearly above its start, or its lowest loss
    is_lost: bool = False  # the commit's start is better than its present state
    best: float | None = None  # the lowest loss that the line has reached


NO_FAULT = Fault()


def fault(
    losses: Array, scales: Sequence[float], known: Known, *, is_over: bool, opening: Sequence[float] = ()
) -> Fault:
    """Judge a commit by the usable `losses` `(n,)` of its trace and its gradient scales `(n,)`, NaN if unknown.

    `opening` are its first losses one by one, if known: points of a long trace are means of many steps. `is_over`: the
    commit ends here. Until then, a loss that falls again gets time.
    """
    window = min(WINDOW, len(losses) // 2)
    if is_over and _has_blown_up(losses, known):
        return Fault(is_dead=True, has_risen=True, is_lost=True)
    if window < SHORTEST_WINDOW:
        return NO_FAULT
    start = known.start
    if start is None:
        start = float(np.median(opening or losses[: WINDOW // 4]))
    initial = initial_loss(known, start)
    levels = _Levels(losses, window)
    last, before, lowest = levels.at(-1), levels.at(-2), levels.lowest(but=1)
    best = lower(known.best, lower(LossLevel(start, 0.0), lowest))
    known = known._replace(start=start, initial=initial, unit=size_of(initial, losses, lowest=best.loss))
    own = lower(LossLevel(start, last.error), lowest)
    is_falling = _is_above(before, last, least=0.0)
    factor = CLEAR_FACTOR if losses.min() > 0 else math.inf
    is_clear = all(_is_clearly_above(level, best, known, factor=factor) for level in (before, last))  # no passing spike
    rose = _is_above(last, own, least=0.0)
    is_worse = window == WINDOW and rose and is_clear and (is_over or not is_falling)
    return Fault(
        has_worsened=is_worse,
        is_dead=_is_dead(last, before, best, known, window=window, is_gone=has_vanished(scales, known.gradient_scale)),
        is_ignorant=all(_is_ignorant(level, known, -SURE_ERRORS) for level in (before, last))
        and not _falls(before, last, known),
        has_learned=not _is_ignorant(lower(lowest, last), known, SURE_ERRORS),
        has_risen=_is_above(last, own, least=CLEAR_SHARE * known.unit),
        is_lost=last.loss >= start - (1 - LOST_SHARE) * max(0.0, start - lowest.loss),
        best=best.loss,
    )


def initial_loss(known: Known, start: float) -> float:
    """Return the loss at which the run started, given the loss `start` of its first stage.

    It is the lower of `start` and the loss before the first step. Steps at a rate that is too high raise the first
    losses. And a model's loss before its first step may be higher than that of one that has learned nothing.
    """
    if known.initial is not None:
        return known.initial
    return start if known.first is None else min(start, known.first)


def _has_blown_up(losses: Array, known: Known) -> bool:
    if len(losses) <= BLOWN_POINTS:
        return False
    start = float(losses[0]) if known.start is None else known.start
    # a loss that blew up is noisy: its own noise would excuse it
    unit = size_of(start if known.initial is None else known.initial, lowest=float(losses.min()))
    return bool(np.all(losses[-BLOWN_POINTS:] > start + BLOWN_UP * unit))


def _is_dead(last: LossLevel, before: LossLevel, best: LossLevel, known: Known, *, window: int, is_gone: bool) -> bool:
    """Return whether a flat loss shows two of three signs: ignorance, a vanished gradient, a better level before.

    A model that has converged shows at most one: its gradient has vanished, but at its best loss.
    """
    if not _is_flat(before, last, known):
        return False
    reachable = best if known.probed is None else lower(best, _level_of(known.probed, last, window))
    is_above = _is_above(last, reachable, least=CLEAR_SHARE * known.unit)
    return sum(map(bool, (_is_ignorant(last, known), is_above, is_gone))) >= 2


def _level_of(probed: Probed, like: LossLevel, window: int) -> LossLevel:
    # a probe's few losses are assumed to be as noisy as those of a window of this commit
    return LossLevel(probed.loss, like.error * math.sqrt(window / probed.num_points))


def _is_flat(before: LossLevel, last: LossLevel, known: Known) -> bool:
    return not (_falls(before, last, known) or _falls(last, before, known))


def _falls(before: LossLevel, last: LossLevel, known: Known) -> bool:
    return _is_above(before, last, least=FLAT_SHARE * known.unit)


def _is_ignorant(level: LossLevel, known: Known, errors: float = 0.0) -> bool:
    # whether the level, raised by `errors` standard errors, is no better than the run's first loss
    return level.loss + errors * level.error >= (known.initial or 0.0) - IGNORANCE_SHARE * known.unit


def has_vanished(scales: Sequence[float], reference: float | None) -> bool:
    """Return whether gradient scales `(n,)` of a commit end near zero, relative to `reference`; None: to their own."""
    first = reference if reference is not None else gradient_start(scales)
    last = median(scales[-WINDOW:]) if len(scales) else math.nan
    return first is not None and last <= VANISHED * first


def gradient_start(scales: Sequence[float]) -> float | None:
    """Return the gradient's scale at the beginning of a commit, or None if it is 0 or not known."""
    first = median(scales[: WINDOW // 2]) if len(scales) else math.nan
    return first if 0 < first < math.inf else None


def reached(losses: Sequence[float]) -> LossLevel | None:
    """Return the lowest level of a commit with these `losses` of its trace; None: too few, or not all are usable."""
    values = np.asarray(losses, dtype=np.float64)
    return _Levels(values).lowest() if len(values) >= WINDOW and is_usable(values) else None


def lower(first: LossLevel | None, second: LossLevel) -> LossLevel:
    """Return the lower of two levels."""
    return second if first is None or second.loss < first.loss else first


class _Levels:
    """The levels of a trace's windows, oldest first. A window's noise is estimated with the windows before it."""

    def __init__(self, losses: Array, window: int = WINDOW) -> None:
        self._windows = losses[len(losses) % window :].reshape(-1, window)
        self._medians = np.median(self._windows, axis=1)

    def at(self, index: int) -> LossLevel:
        index %= len(self._windows)
        near = self._windows[max(0, index - 2) : index + 1].ravel()
        window = self._windows.shape[1]
        error = max(standard_error(self._windows[index]), noise(near) / math.sqrt(window))
        low = float(np.sort(self._windows[index])[window // 4])
        return LossLevel(float(self._medians[index]), 1.25 * error, low)  # of a median, under normal noise

    def lowest(self, *, but: int = 0) -> LossLevel:
        """Return the lowest of all levels but the last few."""
        return self.at(int(np.argmin(self._medians[: len(self._medians) - but])))


def _is_clearly_above(level: LossLevel, best: LossLevel, known: Known, *, factor: float) -> bool:
    """Return whether a level is above the best by a share of the run's first loss, or by this `factor`.

    A loss that has fallen from 10 to 0.001 loses all that it has gained within 5 % of its first.
    """
    is_multiple = best.loss > 0 and level.loss > factor * best.loss
    return _is_above(level, best, least=(LEAST_SHARE if is_multiple else CLEAR_SHARE) * known.unit)


def _is_above(level: LossLevel, other: LossLevel, *, least: float) -> bool:
    """Return whether a level is above another by more than noise. After a blow-up, the noise may exceed the height."""
    noise_of_both = CLEAR_ERRORS * math.hypot(level.error, other.error)
    is_clear = level.loss > other.loss + max(noise_of_both, least)
    return is_clear or level.low > other.loss + CLEAR_ERRORS * other.error + least
