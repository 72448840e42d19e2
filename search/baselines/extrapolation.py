"""The published forecast of a probe's loss: outliers out, a smoothing spline, an exponential through it.

The procedure of AutoLRS (Jin et al., ICLR 2021) as published, except that it always answers: if the least squares has
no unique solution, the one of least norm is taken. It does not estimate its uncertainty; `search.curves.forecast` does.
"""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import UnivariateSpline
from scipy.optimize import fmin

Array = NDArray[np.float64]

DEGREE = 2
#: A spline of degree 2, and a curve of three parameters, need as many losses.
MIN_LOSSES = 4
#: exp(-exp(x)) is 0 beyond.
LARGEST_EXPONENT = 50.0


class Extrapolation(NamedTuple):
    """A loss `mean`, and the root mean square of the losses around the curve that leads there."""

    mean: float
    std: float


def extrapolate(losses: Sequence[float], horizon: float, *, passes: int, outliers: float) -> Extrapolation:
    """Return the loss at step `horizon` of a run whose steps from 0 on had these finite `losses`.

    L(t) = a exp(-exp(b) t) + c is fitted to a smoothing spline. Before that, each of `passes` picks the share
    `outliers` of the losses, those farthest from a spline through them, and drops the ones in the first half. With
    fewer than 4 losses, the last one is returned.

    Raises:
        ValueError: `losses` is empty.
    """
    if not losses:
        raise ValueError("`losses` must hold at least 1 loss, got 0.")
    values = np.asarray(losses, dtype=np.float64)
    if len(values) < MIN_LOSSES:
        return Extrapolation(float(values[-1]), float(np.ptp(values)))
    times = np.arange(len(values), dtype=np.float64)
    smooth = _spline(*_without_outliers(times, values, passes=passes, share=outliers), at=times)
    exponent = float(fmin(_misfit, 0.0, args=(times, smooth), xtol=1e-5, ftol=1e-5, disp=False)[0])
    design = _design(exponent, times)
    coefficients = _solve(design, smooth)
    mean = float((_design(exponent, np.array([horizon])) @ coefficients)[0])
    std = float(np.sqrt(np.mean((values - design @ coefficients) ** 2)))
    return Extrapolation(mean, std) if np.isfinite(mean) else Extrapolation(float(smooth[-1]), std)


def _without_outliers(times: Array, values: Array, *, passes: int, share: float) -> tuple[Array, Array]:
    middle = times[(len(times) - 1) // 2]
    for _ in range(passes):
        num_dropped = round(share * len(values))  # of a short curve none
        distances = np.abs(values - _spline(times, values, at=times))
        farthest = np.argsort(distances, kind="stable")[len(values) - num_dropped :]
        kept = np.setdiff1d(np.arange(len(values)), farthest[times[farthest] < middle])
        times, values = times[kept], values[kept]
    return times, values


def _spline(times: Array, values: Array, *, at: Array) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a curve that no smooth spline comes near to
        return np.asarray(UnivariateSpline(times, values, k=DEGREE)(at))


def _misfit(exponent: Array, times: Array, values: Array) -> float:
    design = _design(float(exponent[0]), times)
    return float(np.sum((values - design @ _solve(design, values)) ** 2))


def _design(exponent: float, times: Array) -> Array:
    decay = np.exp(-np.exp(min(exponent, LARGEST_EXPONENT)) * times)
    return np.stack([decay, np.ones_like(times)], axis=1)


def _solve(design: Array, values: Array) -> Array:
    return np.asarray(np.linalg.lstsq(design, values, rcond=None)[0])
