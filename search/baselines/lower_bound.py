"""AutoLRS's next rate (Jin et al., ICLR 2021): where a Gaussian process has the lowest bound of the loss."""

import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.optim.fit import fit_gpytorch_mll_scipy
from gpytorch.constraints import Interval
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from numpy.typing import NDArray

from search.surrogate.model import MAX_FIT_ITERATIONS, quiet_and_single_threaded

Array = NDArray[np.float64]

#: Points of the grid on which the bound is minimised.
NUM_CELLS = 1001


def lowest_bound(points: Array, losses: Array, *, kappa: float) -> float:
    """Return the new point of [0, 1] where mean - `kappa` x standard deviation is least.

    The model is a Gaussian process with a Matern-5/2 kernel and white noise, fitted to the normalised `losses` `(n,)`
    at `points` `(n,)`, n >= 1, by maximum likelihood without priors: scikit-optimize's defaults, which AutoLRS uses. If
    all losses are equal, the result is the point farthest from all others.
    """
    grid = np.linspace(0.0, 1.0, NUM_CELLS)
    distances = np.abs(grid[:, None] - points[None, :]).min(axis=1)
    if np.ptp(losses) == 0:
        return float(grid[int(distances.argmax())])
    free = grid[distances > 0.5 / (NUM_CELLS - 1)]
    with quiet_and_single_threaded(), torch.no_grad():
        posterior = _fitted(points, losses).posterior(_column(free))
        bound = posterior.mean - kappa * posterior.variance.sqrt()
    return float(free[int(bound.argmin())])


def _fitted(points: Array, losses: Array) -> SingleTaskGP:
    kernel = ScaleKernel(
        MaternKernel(nu=2.5, lengthscale_constraint=Interval(0.01, 100.0, initial_value=1.0)),
        outputscale_constraint=Interval(0.01, 1000.0, initial_value=1.0),
    )
    model = SingleTaskGP(
        _column(points),
        _column((losses - losses.mean()) / losses.std()),
        likelihood=GaussianLikelihood(noise_constraint=Interval(1e-5, 1e5, initial_value=1.0)),
        covar_module=kernel,
        mean_module=ZeroMean(),
        outcome_transform=None,
    )
    with torch.enable_grad():
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
        fit_gpytorch_mll_scipy(mll, options={"maxiter": MAX_FIT_ITERATIONS})
    return model.eval()


def _column(values: Array) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.float64).unsqueeze(-1)
