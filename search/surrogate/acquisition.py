"""Maximise an acquisition function over a discrete cloud of points, which takes milliseconds."""

from collections.abc import Callable
from functools import cache
from threading import Lock

import numpy as np
import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.sampling.normal import SobolQMCNormalSampler
from numpy.typing import NDArray

from search.surrogate.gaussian_process import GaussianProcess
from search.surrogate.model import MIN_POINTS, AnySurrogate, Surrogate, quiet_and_single_threaded

Array = NDArray[np.float64]
IsLegal = Callable[[Array], bool]
Snap = Callable[[Array], Array]

NUM_SOBOL = 512
NUM_LOCAL = 64
#: Standard deviation of the local cloud, as a share of the bounds' width.
LOCAL_WIDTH = 0.05
NUM_SAMPLES = 64

_WARMING = Lock()


def sobol_points(num_points: int, bounds: Array, *, seed: int) -> Array:
    """Return scrambled Sobol points `(num_points, d)` within `bounds` `(2, d)`: lower row, upper row."""
    engine = torch.quasirandom.SobolEngine(bounds.shape[1], scramble=True, seed=seed)  # type: ignore[no-untyped-call]
    unit = engine.draw(num_points, dtype=torch.float64).numpy()
    return np.asarray(bounds[0] + unit * (bounds[1] - bounds[0]))


def next_point(
    surrogate: AnySurrogate, bounds: Array, *, pending: Array, snap: Snap, is_legal: IsLegal, seed: int
) -> Array | None:
    """Return the legal point `(d,)` within `bounds` `(2, d)` with the highest acquisition, or None if none is legal.

    The acquisition is qLogNoisyExpectedImprovement (Ament et al., 2023), or the log of the expected improvement for the
    plain surrogate. It is maximised over 512 Sobol points and 64 around the best mean.

    Args:
        surrogate: fitted in the unit cube.
        bounds: the lowest and the highest coordinates.
        pending: points `(p, d)` whose probes are still running.
        snap: moves a cloud `(m, d)` onto legal values, so whole numbers and choices are searched exactly.
        is_legal: returns whether a point `(d,)` may be tried. It is asked about the best point first.
        seed: of the cloud and the samples.

    Raises:
        one of `search.surrogate.model.NUMERICAL_FAILURES`: BoTorch's acquisition failed.
    """
    cloud = snap(_cloud(surrogate, bounds, seed))
    worth = _worth(surrogate, cloud, pending, seed)
    if not np.isfinite(worth).any():
        raise ArithmeticError("no point of the acquisition is finite")
    best_first = np.argsort(-worth, kind="stable")  # NaN last
    return next((cloud[index] for index in best_first if not np.isnan(worth[index]) and is_legal(cloud[index])), None)


def _worth(surrogate: AnySurrogate, cloud: Array, pending: Array, seed: int) -> Array:
    if isinstance(surrogate, GaussianProcess):
        return surrogate.log_improvement(cloud, pending=pending)
    with quiet_and_single_threaded(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        acquisition = qLogNoisyExpectedImprovement(
            surrogate.model,
            X_baseline=surrogate.points,
            sampler=SobolQMCNormalSampler(torch.Size([NUM_SAMPLES]), seed=seed),
            X_pending=torch.as_tensor(pending, dtype=torch.float64) if len(pending) else None,
            prune_baseline=False,
        )
        return np.asarray(acquisition(torch.as_tensor(cloud, dtype=torch.float64).unsqueeze(1)).numpy())


def warm_up() -> None:
    """Fit and ask once on dummy data: the first time in a process, libraries load for some tenths of a second."""
    with _WARMING:  # threads that load them at the same time have been seen to mix up float32 and float64
        _warm_up_once()


@cache
def _warm_up_once() -> None:
    bounds = np.array([[0.0, 0.0], [1.0, 1.0]])
    points = sobol_points(2 * MIN_POINTS, bounds, seed=0)
    surrogate = Surrogate(points, points.sum(axis=1), np.full(len(points), 0.01))
    next_point(surrogate, bounds, pending=points[:1], snap=np.asarray, is_legal=lambda point: True, seed=0)
    surrogate.joint(points)


def _cloud(surrogate: AnySurrogate, bounds: Array, seed: int) -> Array:
    known = np.asarray(surrogate.points)
    best = np.clip(known[int(surrogate.mean(known).argmax())], bounds[0], bounds[1])
    spread = LOCAL_WIDTH * (bounds[1] - bounds[0])
    local = best + spread * np.random.default_rng(seed).standard_normal((NUM_LOCAL, bounds.shape[1]))
    return np.concatenate([sobol_points(NUM_SOBOL, bounds, seed=seed), np.clip(local, bounds[0], bounds[1])])
