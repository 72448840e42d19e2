"""Reuse the scores of earlier stages, discounted as the landscape drifts.

A *history* holds the finite scores of the last stages, newest first. Each stage's scores are relative to the score of
the values nearest to the present incumbent. The *drift* is how far rewards move from one stage to the next, as a share
of their standard deviation.
"""

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from search.bayesian.stage import History, Score
from search.space import distance
from search.types import Values

#: Stages that are remembered.
MAX_AGE = 3
#: The prior of the drift, which counts as one comparison, and the most that any comparison shows.
DRIFT, MOST_DRIFT = 0.5, 2.0
#: Values within this distance in natural logarithms, a factor of 1.25, are compared across stages.
NEAR = 0.22


def extended(history: History, scores: Iterable[Score], *, incumbent: Values) -> History:
    """Add a stage with `scores` to the history, for the next one's `incumbent`; the oldest stage is dropped."""
    finite = tuple(score for score in scores if score.reward is not None)
    return tuple(_aligned(stage, incumbent) for stage in (finite, *history)[:MAX_AGE])


def learned_drift(history: History) -> float:
    """Estimate the drift from values of `history` that were tried in two stages, nearly the same.

    If rewards follow a random walk from stage to stage, the square of their difference exceeds its noise by
    (stages apart) x drift^2 x (variance of a stage's rewards). The estimate is the mean of all comparisons and the
    prior.
    """
    squares = [DRIFT**2]
    for (age, newer), (older_age, older) in itertools.combinations(enumerate(history), 2):
        scale = (older_age - age) * (_variance(newer) + _variance(older)) / 2
        excesses = _excesses(newer, older) if scale > 0 else []
        squares += [min(MOST_DRIFT**2, max(0.0, excess / scale)) for excess in excesses]
    return math.sqrt(sum(squares) / len(squares))


def discounted(history: History, drift: float) -> list[Score]:
    """Return all scores, with variances increased by age x (drift x standard deviation of their stage)^2."""
    return [
        score._replace(variance=score.variance + age * drift**2 * _variance(stage))
        for age, stage in enumerate(history, start=1)
        for score in stage
    ]


def _excesses(newer: Sequence[Score], older: Sequence[Score]) -> list[float]:
    """Return by how much the squared differences between rewards of near values exceed their variance."""
    return [
        (first.reward - second.reward) ** 2 - first.variance - second.variance
        for first, second in itertools.product(newer, older)
        # a reward of 0 is its stage's origin; origins agree by definition
        if first.reward and second.reward and distance(first.values, second.values) <= NEAR
    ]


def _aligned(stage: tuple[Score, ...], incumbent: Values) -> tuple[Score, ...]:
    if not stage:
        return ()
    origin = min(stage, key=lambda score: distance(score.values, incumbent)).reward or 0.0
    return tuple(score._replace(reward=(score.reward or 0.0) - origin) for score in stage)


def _variance(stage: Sequence[Score]) -> float:
    return float(np.var([score.reward for score in stage if score.reward is not None])) if stage else 0.0
