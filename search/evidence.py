"""From losses to what a surrogate can learn from: rewards, their variances, and a place for what diverged."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from search.forecast import has_diverged, standard_error
from search.gaussian_process import Expectation, Function
from search.prior import NO_PRIOR, Prior
from search.reading import Reading, usable_median
from search.space import Box
from search.stage import Probe, Score, Stage
from search.surrogate import LEAST_POINTS, MIN_POINTS, AnySurrogate, fit
from search.transfer import expectation, worth_of_divergence
from search.types import Values

Array = NDArray[np.float64]

#: Below this share of the run's first loss a rise is never called a divergence.
TOLERANCE = 0.7
#: How much of the rewards' spread an older stage's reward may have drifted by.
DRIFT = 0.5
#: What a level a decade away from the opening one is expected to cost, in standard deviations of the rewards.
STDS_PER_DECADE = 0.5


def opening_level(readings: Sequence[Reading]) -> float | None:
    """Return the level of a stage whose probes are all that is known: the median of their first losses."""
    return usable_median([loss for reading in readings for loss in reading.opening])


def stage_level(stage: Stage) -> float | None:
    """Return the loss at which `stage` started."""
    return stage.level if stage.level is not None else opening_level([probe.reading for probe in stage.probes])


def is_diverged(reading: Reading, *, level: float | None, initial: float | None) -> bool:
    """Whether a probe blew up, by its trainer's word or by its curve."""
    tolerance = TOLERANCE * abs(initial if initial is not None else level or 0.0)
    return reading.diverged or has_diverged(reading.losses, level=level, tolerance=tolerance)


def scores(stage: Stage) -> tuple[Score, ...]:
    """Return what each finished probe of `stage` is worth, in their order.

    The reward is ln L0 - ln(mean loss of the probe's last half), L0 the stage's starting level: comparable
    between stages. Where a loss is not positive, (L0 - tail) / |L0| stands in for it. Probes of equal length
    and batch size saw the same batches, so their variance is that of the paired difference to the first of them;
    one with another batch size saw others, and the noise of both counts.
    """
    level = stage_level(stage)
    probes = stage.probes
    usable = {
        index: _Half(probe.reading.num_steps, probe.candidate.values.batch_size, _last_half(probe.reading))
        for index, probe in enumerate(probes)
        if level is not None and not is_diverged(probe.reading, level=level, initial=stage.initial)
    }
    if level is None or not usable:
        return tuple(Score(probe.candidate.values, None, 0.0) for probe in probes)
    control = next(iter(usable.values()))
    tails = {index: float(half.losses.mean()) for index, half in usable.items()}
    is_positive = level > 0 and min(tails.values()) > 0
    return tuple(
        _score(probe, usable[index], control, level=level, is_positive=is_positive)
        if index in usable
        else Score(probe.candidate.values, None, 0.0)
        for index, probe in enumerate(probes)
    )


class _Half(NamedTuple):
    num_steps: int  # of the whole probe
    batch_size: int | None
    losses: Array


def _score(probe: Probe, half: _Half, control: _Half, *, level: float, is_positive: bool) -> Score:
    tail = float(half.losses.mean())
    unit = tail if is_positive else abs(level) or 1.0
    reward = math.log(level / tail) if is_positive else (level - tail) / unit
    return Score(probe.candidate.values, reward, (_error(half, control) / unit) ** 2)


def _error(half: _Half, control: _Half) -> float:
    """Return the standard error of the difference between two probes' mean losses."""
    if half is control:
        return 0.0  # the others carry the noise of the difference
    if half.batch_size != control.batch_size:
        return math.hypot(standard_error(half.losses), standard_error(control.losses))
    is_paired = half.num_steps == control.num_steps
    return standard_error(half.losses - control.losses if is_paired else half.losses)


def _last_half(reading: Reading) -> Array:
    losses = np.asarray(reading.losses, dtype=np.float64)
    return losses[len(losses) // 2 :]


def relative_to(chosen: Values, stage: Stage, box: Box) -> tuple[Score, ...]:
    """Return the finite scores of `stage` relative to that of the probe nearest to `chosen`, with added drift.

    Scores of an earlier stage inform the next one, but the landscape has moved: their variance grows by
    (0.5 x their standard deviation)^2.
    """
    finite = [(score, score.reward) for score in scores(stage) if score.reward is not None]
    if not finite:
        return ()
    target = np.asarray(box.to_unit(chosen))
    distances = [np.linalg.norm(np.asarray(box.to_unit(score.values)) - target) for score, _ in finite]
    origin = finite[int(np.argmin(distances))][1]
    drift = (DRIFT * float(np.std([reward for _, reward in finite]))) ** 2
    return tuple(Score(score.values, reward - origin, score.variance + drift) for score, reward in finite)


class Evidence(NamedTuple):
    """Data for a surrogate: values, rewards `(n,)` and variances `(n,)`; what diverged is in with a low reward."""

    values: list[Values]
    rewards: Array
    variances: Array
    num_finite: int
    prior: Prior = NO_PRIOR

    def surrogate(self, box: Box, opening: Values) -> AnySurrogate | None:
        """Return a surrogate over `box`, or None if there is too little to learn from."""
        is_enough = len(self.values) >= LEAST_POINTS if self.prior.searches else self.num_finite >= MIN_POINTS
        if not is_enough:
            return None
        return fit(self._points(box), self.rewards, self.variances, expected=self.expectation(box, opening))

    def expectation(self, box: Box, opening: Values) -> Expectation:
        """Return what past runs, as far as they explain the probes, and the link's rule lead to expect."""
        return expectation(
            self.prior, box, self._points(box), self.rewards, self.variances, otherwise=level_belief(box, opening)
        )

    def _points(self, box: Box) -> Array:
        return np.array([box.to_unit(values) for values in self.values])


def level_belief(box: Box, opening: Values) -> Function:
    """Return what is expected of the level before any probe: that the one the run opens with is best.

    It opens with what the link suggests. A level 10 times as high, or as low, costs half of a standard deviation of
    the rewards: probes that tell levels apart outvote it.
    """
    peak, weight = np.zeros(len(box.axes)), np.zeros(len(box.axes))
    for column, axis in enumerate(box.axes):
        if axis.name == "level" and opening.level is not None:
            peak[column] = axis.to_unit(opening.level)
            weight[column] = STDS_PER_DECADE * math.log10(axis.high / axis.low) ** 2
    return lambda points: -np.asarray((points - peak) ** 2 @ weight)


def evidence(stage: Stage) -> Evidence:
    """Return what this stage's probes and the stage before say, rewards relative to this stage's first finite one."""
    current = scores(stage)
    origin = next((score.reward for score in current if score.reward is not None), 0.0)
    rows = [(score.values, score.reward - origin, score.variance) for score in current if score.reward is not None]
    rows += [(score.values, score.reward, score.variance) for score in stage.previous if score.reward is not None]
    num_finite = len(rows)
    diverged = [score.values for score in current if score.reward is None]
    if rows:
        reward, variance = worth_of_divergence([reward for _, reward, _ in rows])
        rows += [(values, reward, variance) for values in diverged]
    return Evidence(
        values=[values for values, _, _ in rows],
        rewards=np.array([reward for _, reward, _ in rows]),
        variances=np.array([variance for _, _, variance in rows]),
        num_finite=num_finite,
        prior=stage.prior,
    )


def diverged_values(stage: Stage) -> tuple[Values, ...]:
    """Return all values that may not be tried again in `stage`."""
    return stage.barred + tuple(score.values for score in scores(stage) if score.reward is None)
