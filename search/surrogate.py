"""A Gaussian process over the unit cube: what the probes so far say about every point.

Symbols: X the points `(n, d)`, y their rewards `(n,)` (higher is better), Yvar the variances of y.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from botorch.exceptions.warnings import BotorchWarning, OptimizationWarning
from botorch.models import SingleTaskGP
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.settings import skip_posterior_variances
from linear_operator.utils.warnings import NumericalWarning
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

#: With fewer finite points a Gaussian process says less than a space-filling design.
MIN_POINTS = 4
MAX_FIT_ITERATIONS = 40
#: A grid has thousands of points, and their prior covariance is computed even where no variance is asked for.
MEANS_AT_ONCE = 512
#: Noise is at least this share of the rewards' spread: probes never agree to the last digit.
NOISE_FLOOR = 0.02


#: Said of what is legal here: a constant reward, a fit that the iteration limit ends, points close together.
EXPECTED_WARNINGS = (BotorchWarning, OptimizationWarning, NumericalWarning)


@contextmanager
def quiet_and_single_threaded() -> Iterator[None]:
    """Run torch on one thread inside, and drop warnings about what is legal here; both restored on exit.

    With matrices this small, threads only cost time.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings():
            for category in EXPECTED_WARNINGS:
                warnings.simplefilter("ignore", category)
            yield
    finally:
        torch.set_num_threads(threads)


class Belief(NamedTuple):
    """What is expected before any probe: -`weight` x (u - `peak`)^2, summed over the axes of the unit cube.

    Both are `(d,)`. A weight is in standard deviations of the rewards; where it is 0 nothing is expected.
    """

    peak: Array
    weight: Array


class _BelievedMean(ConstantMean):  # type: ignore[misc]  # gpytorch is untyped
    """A constant, fitted, plus a belief, which is not."""

    def __init__(self, belief: Belief) -> None:
        super().__init__()
        self._peak, self._weight = (torch.as_tensor(each, dtype=torch.float64) for each in belief)

    def forward(self, points: Tensor) -> Tensor:
        """Return the prior means `(..., n)` at `points` `(..., n, d)`."""
        constant: Tensor = super().forward(points)
        return constant - ((points - self._peak).square() * self._weight).sum(dim=-1)


class Surrogate:
    """A fitted Gaussian process; the same data give the same bits.

    `model` works on standardised rewards: (y - `centre`) / `spread`.
    """

    def __init__(self, points: Array, rewards: Array, variances: Array, *, belief: Belief | None = None) -> None:
        """Fit to `points` `(n, d)` in the unit cube, `rewards` `(n,)` and their `variances` `(n,)`, n >= 4.

        `belief` is added to the prior mean, which else is constant. The rest is BoTorch's defaults: RBF kernel with
        one length scale per axis, and a log-normal prior on it that grows with sqrt(d) (Hvarfner et al., 2024).

        Raises:
            ValueError: fewer than 4 points, or a reward that is not finite.
        """
        if len(points) < MIN_POINTS or not np.all(np.isfinite(rewards)):
            raise ValueError(f"`rewards` must be at least {MIN_POINTS} finite numbers, got {rewards.tolist()}.")
        self.centre = float(rewards.mean())
        self.spread = float(rewards.std(ddof=1)) or 1.0
        self.points = torch.as_tensor(points, dtype=torch.float64)
        flat = Belief(np.zeros(points.shape[1]), np.zeros(points.shape[1]))
        noise = np.maximum(variances / self.spread**2, NOISE_FLOOR**2)
        with quiet_and_single_threaded():
            self.model = SingleTaskGP(
                self.points,
                torch.as_tensor((rewards - self.centre) / self.spread, dtype=torch.float64).unsqueeze(-1),
                torch.as_tensor(noise, dtype=torch.float64).unsqueeze(-1),
                mean_module=_BelievedMean(belief or flat),
                outcome_transform=None,
            )
            likelihood = ExactMarginalLogLikelihood(self.model.likelihood, self.model)
            fit_gpytorch_mll_scipy(likelihood, options={"maxiter": MAX_FIT_ITERATIONS})
        self.model.eval()

    def mean(self, points: Array) -> Array:
        """Return the posterior means `(m,)` of the rewards at `points` `(m, d)`."""
        chunks = [points[start : start + MEANS_AT_ONCE] for start in range(0, len(points), MEANS_AT_ONCE)]
        with quiet_and_single_threaded(), torch.no_grad(), skip_posterior_variances():
            means = [self.model.posterior(torch.as_tensor(chunk, dtype=torch.float64)).mean for chunk in chunks]
            return self.centre + self.spread * np.asarray(torch.cat(means).squeeze(-1).numpy())

    def joint(self, points: Array) -> tuple[Array, Array]:
        """Return posterior mean `(m,)` and covariance `(m, m)` of the noise-free rewards at `points` `(m, d)`."""
        with quiet_and_single_threaded(), torch.no_grad():
            posterior = self.model.posterior(torch.as_tensor(points, dtype=torch.float64))
            mean = self.centre + self.spread * np.asarray(posterior.mean.squeeze(-1).numpy())
            return mean, self.spread**2 * np.asarray(posterior.distribution.covariance_matrix.numpy())

    def marginals(self, points: Array) -> tuple[Array, Array]:
        """Return posterior mean and standard deviation `(m,)` of the noise-free reward at each of `points` `(m, d)`."""
        with quiet_and_single_threaded(), torch.no_grad():
            # every point is a batch of its own: a thousand of them need no covariance, which takes 10 ms
            posterior = self.model.posterior(torch.as_tensor(points, dtype=torch.float64).unsqueeze(1))
            mean, variance = posterior.mean.flatten().numpy(), posterior.variance.flatten().numpy()
        return self.centre + self.spread * np.asarray(mean), self.spread * np.sqrt(np.asarray(variance))
