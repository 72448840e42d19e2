"""Weigh past searches by how well they explain this run's probes, and predict values that were not probed.

Bayesian model averaging (Hoeting et al., 1999) over one model per past search, and one without them. Symbols: y this
run's rewards, standardised; f a past search's smoothed rewards, standardised; k the RBF kernel.

    without: y ~ N(e, A + k + noise)                     A: the offset is unknown; e: what is expected otherwise
    a search: y ~ N(f, A + B f f' + R^2 k + noise)       B: so is the scale, somewhere about 1

A search that ranks values in the opposite order explains nothing: its scale would have to be negative.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from search.past_jobs.prior import MIN_FINITE, PastSearch, Prior
from search.space import Box
from search.surrogate.gaussian_process import Expectation, Function, GaussianProcess, kernel, location, noise

Array = NDArray[np.float64]

OFFSET_VARIANCE = 1.0
SCALE_VARIANCE = 0.25
#: How far a run differs from a past search that explains it, as a share of its rewards' standard deviation.
RESIDUAL = 0.3
#: The prior probability that the past explains nothing.
UNEXPLAINED = 0.5
#: Fewer probes do not show how well the past explains them.
MIN_PROBES = 3
#: Learning rates among which the past's best one is sought.
NUM_RATES = 161


class _Model(NamedTuple):
    """A past search as a model of this run: offset + scale x f."""

    log_likelihood: float
    offset: float
    scale: float


def expectation(
    prior: Prior, box: Box, points: Array, rewards: Array, variances: Array, *, otherwise: Function
) -> Expectation:
    """Return the prior mean over `box` that past searches suggest, given `rewards` `(n,)` at `points` `(n, d)`.

    `points` lie in the unit cube of `box`. `otherwise` is the prior mean without the past: a function of points
    `(m, d)`, in standard deviations of the rewards.
    """
    shapes = tuple(shape for search in prior.searches if (shape := shape_of(search, box)) is not None)
    if not shapes or len(points) < MIN_PROBES:
        return Expectation(otherwise)
    centre, spread = location(rewards)
    target, errors = (rewards - centre) / spread, np.diag(noise(variances, spread))
    correlation = kernel(points, points, GaussianProcess(points, rewards, variances).scales)
    without = _log_likelihood(target - otherwise(points), OFFSET_VARIANCE + correlation + errors)
    models = [_explained(target, shape(points), RESIDUAL**2 * correlation + errors) for shape in shapes]
    weights = _weights(without, [model.log_likelihood for model in models])
    weight = float(weights.sum())

    def mean(cloud: Array) -> Array:
        parts = (
            share * (model.offset + model.scale * shape(cloud))
            for share, model, shape in zip(weights, models, shapes, strict=True)
        )
        return np.asarray(sum(parts, (1 - weight) * otherwise(cloud)))

    return Expectation(mean, math.sqrt(weight * RESIDUAL**2 + 1 - weight), weight)


def best_rate(prior: Prior, box: Box, like: Sequence[float]) -> float | None:
    """Return the learning rate in `box` at which past searches did best on average, the other axes as in `like` `(d,)`.

    None: no past search has these axes.
    """
    shapes = [shape for search in prior.searches if (shape := shape_of(search, box)) is not None]
    if not shapes:
        return None
    grid = np.tile(np.asarray(like, dtype=np.float64), (NUM_RATES, 1))
    grid[:, 0] = np.linspace(0.0, 1.0, NUM_RATES)
    total = np.sum([shape(grid) for shape in shapes], axis=0)
    return box.rates.from_unit(float(grid[int(np.argmax(total)), 0]))


@lru_cache(maxsize=256)
def shape_of(search: PastSearch, box: Box) -> Function | None:
    """Return the smoothed rewards of `search` over the unit cube of `box`, in standard deviations about their mean.

    None: fewer than 4 finite probes set all that `box` searches.
    """
    probes = search.with_values([axis.name for axis in box.axes])
    finite = [(probe.values, probe.reward, probe.variance) for probe in probes if probe.reward is not None]
    if len(finite) < MIN_FINITE:
        return None
    reward, variance = worth_of_divergence([reward for _, reward, _ in finite])
    rows = finite + [(probe.values, reward, variance) for probe in probes if probe.reward is None]
    process = GaussianProcess(
        np.array([box.to_unit(values) for values, _, _ in rows]),
        np.array([reward for _, reward, _ in rows]),
        np.array([variance for _, _, variance in rows]),
    )
    return lambda points: (process.mean(points) - process.centre) / process.spread


def worth_of_divergence(rewards: Sequence[float]) -> tuple[float, float]:
    """Return the reward and variance of a diverged probe, given the finite `rewards`.

    The reward is their lowest less half of their spread, with a large variance: a huge number would flatten all others.
    """
    spread = max(float(np.ptp(rewards)) / 2, float(np.std(rewards)), 0.01)
    return float(np.min(rewards)) - spread, (0.5 * spread) ** 2


def _explained(target: Array, shape: Array, residual: Array) -> _Model:
    """Return how well offset + scale x `shape` explains `target` `(n,)`, with the most probable of both."""
    basis = np.stack([np.ones_like(shape), shape], axis=1)
    before = np.diag([OFFSET_VARIANCE, SCALE_VARIANCE])
    covariance = residual + basis @ before @ basis.T
    missed = target - shape
    offset, extra = before @ basis.T @ np.linalg.solve(covariance, missed)
    return _Model(_log_likelihood(missed, covariance), float(offset), max(0.0, 1 + float(extra)))


def _log_likelihood(values: Array, covariance: Array) -> float:
    """Return ln N(`values`; 0, `covariance`), up to a constant."""
    factor = np.linalg.cholesky(covariance)
    white = np.linalg.solve(factor, values)
    return -0.5 * float(white @ white) - float(np.log(np.diag(factor)).sum())


def _weights(without: float, explained: Sequence[float]) -> Array:
    """Return the probability `(m,)` of each past search's model; the rest to 1 is that of the model without one."""
    share = math.log((1 - UNEXPLAINED) / len(explained))
    logs = np.array([math.log(UNEXPLAINED) + without, *(share + each for each in explained)])
    weights = np.exp(logs - logs.max())
    return np.asarray(weights[1:] / weights.sum())
