"""A small Gaussian process in plain numpy: the fallback if BoTorch's fails, and the smoother of past searches.

The model is that of `search.surrogate.model`: a constant mean, an RBF kernel of unit variance with one length scale per
axis, and known noise. Symbols: X the points `(n, d)`, y their rewards `(n,)` (higher is better), Yvar their variances.
"""

import math
from collections.abc import Callable
from copy import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Function = Callable[[Array], Array]

#: Noise is at least this share of the rewards' spread: probes never agree to the last digit.
NOISE_FLOOR = 0.02
#: A reward with this variance, in units of the rewards' variance, says nothing.
LARGEST_NOISE = 1e6
#: The length scales that are tried; a unit cube needs none outside this range.
LENGTH_SCALES = np.geomspace(0.025, 10.0, 25)
#: Rounds in which the length scales are chosen, one axis after the other.
SWEEPS = 3


def _flat(points: Array) -> Array:
    return np.zeros(len(points))


class Expectation(NamedTuple):
    """The prior mean of the rewards, in their standard deviations.

    `mean` maps points `(m, d)` to `(m,)`; a constant is fitted on top of it. `residual` is how far rewards are expected
    to lie from it. `weight` in [0, 1] is the share of it that comes from past runs.
    """

    mean: Function = _flat
    residual: float = 1.0
    weight: float = 0.0


UNKNOWN = Expectation()


class GaussianProcess:
    """A fitted Gaussian process that cannot fail: nothing iterates, and all matrices are positive definite."""

    def __init__(
        self,
        points: Array,
        rewards: Array,
        variances: Array,
        *,
        expected: Expectation = UNKNOWN,
        scales: Array | None = None,
        failure: str = "",
    ) -> None:
        """Fit to `points` `(n, d)`, `rewards` `(n,)`, `variances` `(n,)`; all finite, n >= 1.

        By default, the length `scales` `(d,)` are the most probable ones on a grid under the prior of Hvarfner et al.
        (2024): log-normal(sqrt 2 + ln(d) / 2, sqrt 3). `failure` says why this process replaces
        `search.surrogate.model.Surrogate`, if it does.
        """
        self.points, self.expected = points, expected
        self.note = failure and f"by the fallback surrogate: {failure}"
        self.centre, self.spread = location(rewards)
        self._unit = self.spread * expected.residual
        self._rewards = (rewards - self.centre - self.spread * expected.mean(points)) / self._unit
        self._noise = noise(variances, self.spread) / expected.residual**2
        self.scales = self._most_probable_scales() if scales is None else scales
        self._condition()

    def _condition(self) -> None:
        self._factor, weighted, self._constant = self._solved(self.scales)
        self._weights = np.linalg.solve(self._factor.T, weighted)

    def mean(self, points: Array) -> Array:
        """Return the posterior means `(m,)` of the rewards at `points` `(m, d)`."""
        cross = kernel(points, self.points, self.scales)
        missed = self._unit * (self._constant + cross @ self._weights)
        return np.asarray(self.centre + self.spread * self.expected.mean(points) + missed)

    def joint(self, points: Array) -> tuple[Array, Array]:
        """Return posterior mean `(m,)` and covariance `(m, m)` of the noise-free rewards at `points` `(m, d)`."""
        shared = np.linalg.solve(self._factor, kernel(self.points, points, self.scales))
        covariance = kernel(points, points, self.scales) - shared.T @ shared
        return self.mean(points), self._unit**2 * covariance

    def marginals(self, points: Array) -> tuple[Array, Array]:
        """Return posterior mean and standard deviation `(m,)` of the noise-free reward at each of `points` `(m, d)`."""
        shared = np.linalg.solve(self._factor, kernel(self.points, points, self.scales))
        return self.mean(points), self._unit * np.sqrt(np.maximum(1e-12, 1 - (shared**2).sum(axis=0)))

    def log_improvement(self, cloud: Array, *, pending: Array) -> Array:
        """Return ln of the expected improvement `(m,)` of each point of `cloud` `(m, d)` over the best known mean.

        Points whose probes still run, `pending` `(p, d)`, count as if they had their expected rewards.
        """
        informed = self._with(pending) if len(pending) else self
        best = float(informed.mean(informed.points).max())
        means, stds = informed.marginals(cloud)
        return np.asarray(np.log(stds) + log_h((means - best) / stds))

    def plain(self, failure: str) -> "GaussianProcess":
        """Return this process, which is the plain one."""
        return self

    def _with(self, pending: Array) -> "GaussianProcess":
        believed = copy(self)
        believed.points = np.concatenate([self.points, pending])
        hoped = self._constant + kernel(pending, self.points, self.scales) @ self._weights
        believed._rewards = np.concatenate([self._rewards, hoped])
        believed._noise = np.concatenate([self._noise, np.full(len(pending), NOISE_FLOOR**2)])
        believed._condition()
        return believed

    def _most_probable_scales(self) -> Array:
        scales = np.full(self.points.shape[1], LENGTH_SCALES[len(LENGTH_SCALES) * 2 // 3])
        for _ in range(SWEEPS if len(scales) > 1 else 1):
            for axis in range(len(scales)):
                tried = np.tile(scales, (len(LENGTH_SCALES), 1))
                tried[:, axis] = LENGTH_SCALES
                scales = tried[int(np.argmax([self._log_posterior(each) for each in tried]))]
        return scales

    def _log_posterior(self, scales: Array) -> float:
        """Return ln p(y | scales) + ln p(scales), up to a constant."""
        factor, weighted, _ = self._solved(scales)
        likelihood = -0.5 * float(weighted @ weighted) - float(np.log(np.diag(factor)).sum())
        location, width = math.sqrt(2) + math.log(len(scales)) / 2, math.sqrt(3)
        return likelihood - float((np.log(scales) + ((np.log(scales) - location) / width) ** 2 / 2).sum())

    def _solved(self, scales: Array) -> tuple[Array, Array, float]:
        """Return the covariance's Cholesky factor L `(n, n)`, L^-1 (y - c) `(n,)`, and the most probable constant c."""
        factor = np.asarray(
            np.linalg.cholesky(kernel(self.points, self.points, scales) + np.diag(self._noise)), dtype=np.float64
        )
        rewards, ones = np.linalg.solve(factor, np.stack([self._rewards, np.ones_like(self._rewards)], axis=1)).T
        constant = float(ones @ rewards) / float(ones @ ones)
        return factor, rewards - constant * ones, constant


#: Below this z the terms of the expected improvement cancel.
FAR = -20.0


def location(rewards: Array) -> tuple[float, float]:
    """Return mean and standard deviation of `rewards` `(n,)`; the latter is 1 if they do not differ."""
    return float(rewards.mean()), (float(rewards.std(ddof=1)) if len(rewards) > 1 else 0.0) or 1.0


def noise(variances: Array, spread: float) -> Array:
    """Return `variances` `(n,)` in units of `spread`, the rewards' standard deviation; neither tiny nor infinite."""
    return np.asarray(np.clip(variances / spread**2, NOISE_FLOOR**2, LARGEST_NOISE))


def log_h(z: Array) -> Array:
    """Return ln(phi(z) + z Phi(z)), the log of the expected improvement in standard units, for any z `(m,)`.

    Below -20 the asymptotic series phi(z) (1 - 3 / z^2 + 15 / z^4) / z^2 stands in for it (Ament et al., 2023).
    """
    low, near = np.minimum(z, FAR), np.maximum(z, FAR)
    density = np.exp(-(near**2) / 2) / math.sqrt(2 * math.pi)
    below = 0.5 * np.array([math.erfc(-value / math.sqrt(2)) for value in near])
    series = np.log1p(-3 / low**2 + 15 / low**4) - low**2 / 2 - math.log(math.sqrt(2 * math.pi)) - 2 * np.log(-low)
    return np.where(z < FAR, series, np.log(density + near * below))


def kernel(first: Array, second: Array, scales: Array) -> Array:
    """Return the RBF kernel `(n, m)` between the points `first` `(n, d)` and `second` `(m, d)`; `scales` `(d,)`."""
    difference = (first[:, None, :] - second[None, :, :]) / scales
    return np.asarray(np.exp(-0.5 * (difference**2).sum(axis=-1)))
