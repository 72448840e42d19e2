"""A Gaussian process over the unit cube, which predicts the reward of every point from the probes so far.

Symbols: X the points `(n, d)`, y their rewards `(n,)` (higher is better), Yvar the variances of y.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from botorch.exceptions.errors import BotorchError, ModelFittingError
from botorch.exceptions.warnings import BotorchWarning, OptimizationWarning
from botorch.models import SingleTaskGP
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.settings import skip_posterior_variances
from linear_operator.utils.warnings import NumericalWarning
from numpy.typing import NDArray
from torch import Tensor

from search.surrogate.gaussian_process import UNKNOWN, Expectation, GaussianProcess, location, noise

Array = NDArray[np.float64]

#: With fewer finite points a Gaussian process says less than a space-filling design ...
MIN_POINTS = 4
#: ... and with fewer than this nothing, even with a prior.
LEAST_POINTS = 3
MAX_FIT_ITERATIONS = 40
#: Points per call: a grid has thousands, and their prior covariance is computed even if no variance is asked for.
MEANS_AT_ONCE = 512
#: The errors that BoTorch, GPyTorch and torch raise for numerical problems.
NUMERICAL_FAILURES = (RuntimeError, ArithmeticError, BotorchError, ModelFittingError)

#: Warnings about what is legal here: a constant reward, a fit that the iteration limit ends, points close together.
EXPECTED_WARNINGS = (BotorchWarning, OptimizationWarning, NumericalWarning)


@contextmanager
def quiet_and_single_threaded() -> Iterator[None]:
    """Run torch on one thread, and drop `EXPECTED_WARNINGS`; both are restored on exit.

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


class _ExpectedMean(ConstantMean):  # type: ignore[misc]  # gpytorch is untyped
    """A fitted constant plus a given expectation, in units of its residual."""

    def __init__(self, expected: Expectation) -> None:
        super().__init__()
        self._expected = expected

    def forward(self, points: Tensor) -> Tensor:
        """Return the prior means `(..., n)` at `points` `(..., n, d)`."""
        flat = self._expected.mean(points.detach().reshape(-1, points.shape[-1]).numpy())
        constant: Tensor = super().forward(points)
        return constant + torch.as_tensor(flat / self._expected.residual).reshape(points.shape[:-1])


class Surrogate:
    """A fitted Gaussian process. The same data give the same result, bit for bit.

    `model` works on standardised rewards: (y - `centre`) / `spread`.
    """

    note = ""  # this is not the fallback

    def __init__(self, points: Array, rewards: Array, variances: Array, *, expected: Expectation = UNKNOWN) -> None:
        """Fit to `points` `(n, d)` in the unit cube, `rewards` `(n,)` and their `variances` `(n,)`, n >= 3.

        `expected` is the prior mean, up to a fitted constant. The rest is BoTorch's defaults: an RBF kernel with one
        length scale per axis, and a log-normal prior on it that grows with sqrt(d) (Hvarfner et al., 2024).

        Raises:
            ValueError: fewer than 3 points, or a reward that is not finite.
        """
        if len(points) < LEAST_POINTS or not np.all(np.isfinite(rewards)):
            raise ValueError(f"`rewards` must be at least {LEAST_POINTS} finite numbers, got {rewards.tolist()}.")
        self.expected, self._data = expected, (points, rewards, variances)
        self.centre, std = location(rewards)
        self.spread = std * expected.residual
        self.points = torch.as_tensor(points, dtype=torch.float64)
        with quiet_and_single_threaded():
            self.model = SingleTaskGP(
                self.points,
                torch.as_tensor((rewards - self.centre) / self.spread, dtype=torch.float64).unsqueeze(-1),
                torch.as_tensor(noise(variances, std) / expected.residual**2).unsqueeze(-1),
                mean_module=_ExpectedMean(expected),
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
            # every point is a batch of its own, so no covariance of a thousand points is computed, which takes 10 ms
            posterior = self.model.posterior(torch.as_tensor(points, dtype=torch.float64).unsqueeze(1))
            mean, variance = posterior.mean.flatten().numpy(), posterior.variance.flatten().numpy()
        return self.centre + self.spread * np.asarray(mean), self.spread * np.sqrt(np.asarray(variance))

    def plain(self, failure: str) -> GaussianProcess:
        """Return the plain Gaussian process of the same data, the fallback after a `failure`."""
        return GaussianProcess(*self._data, expected=self.expected, failure=failure)


#: Both have the same methods.
AnySurrogate = Surrogate | GaussianProcess


def fit(points: Array, rewards: Array, variances: Array, *, expected: Expectation = UNKNOWN) -> AnySurrogate:
    """Return a surrogate of the data, as `Surrogate` takes them; the plain one if BoTorch's fails numerically."""
    try:
        surrogate = Surrogate(points, rewards, variances, expected=expected)
        if all(np.isfinite(part).all() for part in surrogate.joint(points)):
            return surrogate
        failure = "its posterior is not finite"
    except NUMERICAL_FAILURES as error:
        failure = described(error)
    return GaussianProcess(points, rewards, variances, expected=expected, failure=failure)


def described(error: Exception) -> str:
    """Return the first line of the message of `error`, for a reason of one sentence."""
    said = str(error).strip().splitlines()
    return (said[0] if said else type(error).__name__)[:200].rstrip(".")
