"""Forecast a loss curve, robustly and for any input.

Symbols: y the losses, t their steps counted from 0, n their number, sigma the noise of a single loss, h the
horizon in steps. All arithmetic is done on y / median|y|, so the answer does not depend on the loss's scale.

A forecast assumes that training goes on at the same learning rate. `search.bayesian.reports` turns it into the forecast
of a commit, whose rate may be another, and may decay.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from search.types import Forecast

Array = NDArray[np.float64]

#: Beyond this a loss counts as not finite: its square must not overflow.
LARGEST = 1e100
#: Losses are clipped at this multiple of their median size.
FARTHEST = 1e30
#: Longer series are averaged in blocks: the shapes below cannot tell more than 400 points apart.
MAX_POINTS = 400
#: Fewer points than this have neither a noise nor a trend.
MIN_POINTS = 4
#: The least number of neighbours that outvote a spike.
FEWEST_NEIGHBOURS = 3
#: Huber's constant: 95 % efficiency under normal noise (Huber, 1964).
HUBER = 1.345
#: A median absolute deviation x this estimates a normal standard deviation.
MAD_TO_STD = 1.4826
EPSILON = 1e-9
#: The size of a loss that passes zero is at least so many times its noise. Losses that do not are mostly larger.
NOISES = 10.0
#: The prior of a loss that is never negative: it falls to FLOOR +- FLOOR_STD of its tail.
FLOOR, FLOOR_STD = 0.45, 0.15
#: A standard deviation's terms, the same for every status: of the tail's standard error, of the fall that curves lead
#: to, and of the tail for each factor e between n and h. Student's likelihood of 1558 forecasts of 188 curves of 16
#: real tasks is largest in these proportions; without any one task they would be 1.27 to 1.41, 0.73 to 0.83 and 0.094
#: to 0.114. Of the task left out, 72 % of outcomes then lie within 1 standard deviation and 92 % within 2.
ERROR_SHARE, FALL_SHARE, TAIL_SHARE = 1.3, 0.78, 0.105


def forecast_loss(
    losses: Sequence[float],
    horizon: float,
    *,
    start: float | None = None,
    weight: float = 0.45,
) -> Forecast:
    """Forecast the loss at step `horizon` of a run whose first steps had these `losses`.

    The tail (median of the last fifth) moves by the share `weight` towards an average of exponential and power
    curves (weight 1: the average itself), and never above itself. A curve that overshot `start`, the loss at
    which the run forked, gets no credit for coming back; one that made no progress is forecast to stay. One bad loss
    at either end changes no verdict, and 3 seldom do: in 1 of 20 noisy series. More are taken for a real rise.

    `std` is the standard deviation of the median of the losses around `horizon`, at the same learning rate.

    Raises:
        ValueError: `losses` is empty, `horizon` lies before its end or is not finite, or `weight` is not in [0, 1].
    """
    if len(losses) == 0:
        raise ValueError("`losses` must hold at least 1 loss, got 0.")
    if not math.inf > horizon >= len(losses):
        raise ValueError(f"`horizon` must be finite and at least the {len(losses)} steps seen, got {horizon}.")
    if not 0 <= weight <= 1:
        raise ValueError(f"`weight` must be in [0, 1], got {weight}.")
    values = np.asarray(losses, dtype=np.float64)
    if not is_usable(values) or not (start is None or math.isfinite(start)):
        usable = values[np.abs(values) < LARGEST]
        known = start if start is not None and math.isfinite(start) else 0.0
        mean = float(np.median(usable)) if len(usable) else known
        return Forecast(mean=mean, std=abs(mean), status="diverged")
    sizes = np.abs(values)
    unit = max(float(np.median(sizes)), abs(start or 0.0)) or float(sizes.max()) or 1.0  # the largest may be a spike
    scaled_start = None if start is None else start / unit
    points, steps_per_point = _reduce(np.clip(values, -FARTHEST * unit, FARTHEST * unit) / unit)
    forecast = _forecast(points, horizon / steps_per_point, scaled_start, weight=weight)
    numbers = {name: getattr(forecast, name) for name in ("mean", "std", "tail", "average")}
    return forecast.model_copy(update={name: unit * value for name, value in numbers.items() if value is not None})


def has_diverged(
    losses: Sequence[float],
    *,
    start: float | None,
    tolerance: float = 0.0,
    beside: Sequence[Sequence[float]] = (),
) -> bool:
    """Return whether a curve blew up: a loss is not finite, or most of 7 neighbours rise above any noise.

    Of a series below 12 they are 3 or 5. Of fewer losses than 3 the first shows nothing: it comes before any update,
    and on small batches may be many times the others. The bound is `start` + max(2 |start|, `tolerance`, 10 sigma). A
    bare multiple of `start` would call batch noise a divergence once the loss is small; a `tolerance` of 0.7 x the
    run's first loss prevents that.

    If the loss passes zero, its size by `size_of` stands in for |start|; curves `beside` this one help to tell it.
    Before any curve has enough losses to show their noise, there is no size, and so no bound.
    """
    values = np.asarray(losses, dtype=np.float64)
    if len(values) == 0 or not is_usable(values):
        return True
    curves = [values, *map(_as_array, beside)]
    if len(values) < FEWEST_NEIGHBOURS:
        values = values[1:]
    if start is None or not len(values):
        return False
    if passes_zero(start, *curves) and max(map(len, curves)) < MIN_POINTS:
        return False
    bound = start + max(2 * size_of(start, *curves), tolerance, 10 * noise(values))
    return bool(_running_median(values, _spike_window(values)).max() > bound)


def size_of(first: float, *curves: ArrayLike, lowest: float = math.inf) -> float:
    """Return the size of a loss, which shares of it multiply: |`first`|, with which a run or a stage began.

    If it passes zero, zero means nothing, as for a log likelihood or a correlation: it may begin next to it. The size
    is then the largest of |`first`|, of the fall from there to the lowest loss that is no spike, and of `NOISES` times
    the noise. So it is in the unit of the loss, whatever that is.

    Args:
        first: the loss at the beginning.
        curves: series `(n,)` of later losses. Those that are not usable do not count. The least noisy curve tells the
            noise, since a rate that is too high adds some.
        lowest: the lowest loss known besides.
    """
    if not passes_zero(first, *curves, lowest=lowest):
        return first
    usable = [values[np.abs(values) < LARGEST] for values in map(_as_array, curves)]
    ends = [float(_running_median(values, _spike_window(values)).min()) for values in usable if len(values)]
    least = min((noise(values) for values in usable if len(values) >= MIN_POINTS), default=0.0)
    return max(abs(first), first - min([lowest, *ends]), NOISES * least)


def passes_zero(first: float, *curves: ArrayLike, lowest: float = math.inf) -> bool:
    """Return whether a loss that began at `first` is not positive there, or negative later; as `size_of` is told."""
    return not first > 0 or lowest < 0 or any(bool(np.any(_as_array(values) < 0)) for values in curves)


def _as_array(values: ArrayLike) -> Array:
    return np.asarray(values, dtype=np.float64)


def median(values: ArrayLike) -> float:
    """Return the median of a series `(n,)`, n > 0; NaN if one value is. numpy's takes 5 times as long for a window."""
    ordered = np.sort(_as_array(values)).tolist()
    if math.isnan(ordered[-1]):
        return math.nan
    middle = len(ordered) // 2
    return float(ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2)


def noise(values: Array) -> float:
    """Estimate sigma of a series `(n,)` from its differences, so that a trend does not count; 0 below 3 points."""
    if len(values) < 3:
        return 0.0
    steps = values[1:] - values[:-1]
    return MAD_TO_STD * median(np.abs(steps - median(steps))) / math.sqrt(2)


def standard_error(values: Array) -> float:
    """Return the standard error of the mean of a noisy series `(n,)` whose neighbours are correlated."""
    num_points = len(values)
    if num_points < MIN_POINTS:
        return float(np.ptp(values))
    return noise(values) * math.sqrt(_correlation_factor(values) / num_points)


def smooth(values: Array) -> Array:
    """Return the running median of a series `(n,)`, same shape; of a long one the window is an eighth."""
    return _running_median(values, _smooth_window(values))


def is_usable(values: Array) -> bool:
    """Return whether all of `values` are finite and not absurd."""
    return bool(np.all(np.abs(values) < LARGEST))


def _forecast(values: Array, horizon: float, start: float | None, *, weight: float) -> Forecast:
    num_points = len(values)
    ratio = max(1.0, horizon / num_points)
    if num_points < MIN_POINTS:
        middle = float(np.median(values))
        return Forecast(mean=middle, std=_std(float(np.ptp(values)), middle, ratio), status="too_short")
    clean = _without_spikes(values)
    tail, error = _tail(clean)
    if has_diverged(values.tolist(), start=start):
        return Forecast(mean=tail, std=abs(tail), status="diverged")
    if start is not None and tail >= start - 2 * error:
        return Forecast(mean=tail, std=_std(error, tail, ratio), status="no_progress")
    # a smoothed value has an error 1.26 times the tail's: it is a median of fewer
    if start is not None and float(smooth(clean).max()) > start + 4 * error + 0.02 * size_of(start, values):
        return Forecast(mean=tail, std=_std(error, tail, ratio), status="overshoot")
    average = min(tail, _bounded_average(values, horizon, tail=tail, error=error))
    std = _std(error, tail, ratio, fall=tail - average)
    return Forecast(mean=tail + weight * (average - tail), std=std, status="ok", tail=tail, average=average)


def _std(error: float, tail: float, ratio: float, *, fall: float = 0.0) -> float:
    """Return the standard deviation of a forecast at `ratio` = h / n: what is not known grows with its logarithm."""
    return math.hypot(ERROR_SHARE * error, FALL_SHARE * fall, TAIL_SHARE * tail * math.log(ratio))


def _bounded_average(values: Array, horizon: float, *, tail: float, error: float) -> float:
    """Return the average of curves at `horizon`, no lower than twice the progress seen leads to."""
    num_points = len(values)
    skip = min(num_points // 3, max(2, num_points // 20))  # the first steps still move as the values before did
    times, kept = np.arange(skip, num_points, dtype=np.float64), _without_spikes(values[skip:])
    progress = _log_progress(kept, error, horizon / num_points)
    average = max(_average_curve(times, kept, horizon), tail - 2 * progress)
    return max(average, 0.0) if kept.min() >= 0 else average


def _tail(values: Array) -> tuple[float, float]:
    """Return the median of the last fifth, and its standard error (1.25 x a mean's, for normal noise)."""
    last = values[-max(2, len(values) // 5) :]
    error = 1.25 * noise(values) * math.sqrt(_correlation_factor(values) / len(last))
    return float(np.median(last)), error


def _correlation_factor(values: Array) -> float:
    """Return (1 + r) / (1 - r) for the lag-1 autocorrelation r: how much less than n a mean of n averages."""
    half = _half(values, _smooth_window(values))
    rest = (values - smooth(values))[half : len(values) - half]  # at its ends the smoothed curve has no trend
    power = float(rest @ rest)
    if power <= EPSILON**2 * float(values @ values):
        return 1.0
    correlation = min(0.9, max(0.0, float(rest[1:] @ rest[:-1]) / power))
    return (1 + correlation) / (1 - correlation)


def _smooth_window(values: Array) -> int:
    return max(_spike_window(values), len(values) // 8)


def _spike_window(values: Array) -> int:
    """Return the window of which fewer than half may be spikes: 7 steps, 3 or 5 of a series below 12."""
    return 2 * min(3, max(1, len(values) // 4)) + 1


def _half(values: Array, window: int) -> int:
    return min(window // 2, (len(values) - 1) // 2)


def _running_median(values: Array, window: int) -> Array:
    """Return the medians `(n,)` of whole windows alone: the ends take the first one's and the last one's.

    Values repeated to fill a window at an end would let the last of them decide it.
    """
    half = _half(values, window)
    medians = np.median(np.lib.stride_tricks.sliding_window_view(values, 2 * half + 1), axis=1)
    return np.concatenate([np.full(half, medians[0]), medians, np.full(half, medians[-1])])


def _without_spikes(values: Array) -> Array:
    """Return a series `(n,)` whose spikes lie at the median around them (Hampel's filter).

    A spike is 5 standard deviations off, of the noise or of its window if that is wider: a steep curve has no spikes.
    """
    window = _spike_window(values)
    middle = _running_median(values, window)
    distances = np.abs(values - middle)
    spread = np.maximum(noise(values), MAD_TO_STD * _running_mad(values, window))
    return np.where(distances > 5 * spread + EPSILON, middle, values)


def _running_mad(values: Array, window: int) -> Array:
    half = _half(values, window)
    windows = np.lib.stride_tricks.sliding_window_view(values, 2 * half + 1)
    deviations = np.abs(windows - np.median(windows, axis=1)[:, None])
    return np.pad(np.median(deviations, axis=1), half, mode="edge")


def _reduce(values: Array) -> tuple[Array, int]:
    """Return at most `MAX_POINTS` means of equally many values, and how many; a remainder is cut off at the start."""
    size = -(-len(values) // MAX_POINTS)
    num_blocks = len(values) // size
    return values[len(values) - num_blocks * size :].reshape(-1, size).mean(axis=1), size


def _log_progress(values: Array, error: float, ratio: float) -> float:
    """Return the further fall at `ratio` = h / n if the fall per doubling of the steps went on as it was."""
    num_points = len(values)
    around_half = values[int(0.375 * num_points) : max(int(0.625 * num_points), int(0.375 * num_points) + 1)]
    last = values[-max(1, num_points // 4) :]
    fall = max(0.0, float(np.median(around_half)) - float(np.median(last)) - error / 2)
    return fall * max(0.0, math.log2(ratio / 0.875)) / math.log2(7 / 4)


def _shapes(times: Array, length: float) -> Array:
    """Return the 48 falling shapes `(48, len(times))`: exponentials of 24 time scales, powers of 8 x 3."""
    decays = np.geomspace(0.1 * length, 20 * length, 24)
    offsets = np.geomspace(1, max(2.0, 2 * length), 8)
    exponents = np.array([0.25, 0.5, 1.0])
    powers = (1 + times / offsets[:, None, None]) ** -exponents[None, :, None]
    return np.concatenate([np.exp(-times / decays[:, None]), powers.reshape(24, -1)])


def _average_curve(times: Array, values: Array, horizon: float) -> float:
    """Return the weighted mean at `horizon` of all shapes a f(t) + c fitted to `values` `(n,)` at `times` `(n,)`."""
    shapes = _shapes(np.append(times, horizon), float(times[-1]) + 1)
    sigma = max(noise(values), EPSILON + EPSILON * float(np.ptp(values)))
    tail = float(np.median(values[-max(2, len(values) // 5) :]))
    drop = max(0.0, float(np.median(values[: max(2, len(values) // 10)])) - tail)
    floor, width = FLOOR * tail, max(FLOOR_STD * tail, EPSILON) if values.min() >= 0 else math.inf
    slope, offset, misfit = _fit(shapes[:, :-1], values, sigma, floor=floor, width=width)
    weights = np.exp(misfit.min() - misfit)
    low = tail - 2.5 * drop - 2 * sigma
    if values.min() >= 0:
        low = max(0.0, low)
    high = float(values.max()) + 2 * float(np.abs(values).max())
    return float(weights @ np.clip(slope * shapes[:, -1] + offset, low, high) / weights.sum())


def _fit(shapes: Array, values: Array, sigma: float, *, floor: float, width: float) -> tuple[Array, Array, Array]:
    """Fit slope and offset `(m,)` of every shape `(m, n)` by 4 rounds of Huber re-weighting; misfit `(m,)`.

    The offset has the prior N(floor, width^2), which adds to the misfit. Values that are never negative get no
    negative offset: nothing could fall that far.
    """
    weights, pull = np.ones_like(shapes), (sigma / width) ** 2
    for _ in range(4):
        slope, offset = _least_squares(shapes, values, weights, floor=floor, pull=pull)
        residuals = values - slope[:, None] * shapes - offset[:, None]
        size = np.abs(residuals)
        scale = np.maximum(HUBER * MAD_TO_STD * np.median(size, axis=1), EPSILON)[:, None]
        weights = np.minimum(1.0, scale / np.maximum(size, EPSILON))
    return slope, offset, _huber(residuals / sigma).sum(axis=1) + 0.5 * ((offset - floor) / width) ** 2


def _least_squares(shapes: Array, values: Array, weights: Array, *, floor: float, pull: float) -> tuple[Array, Array]:
    """Return slope and offset `(m,)` of `values` `(n,)` on each of `shapes` `(m, n)`, by `weights` `(m, n)`.

    `pull` counts as so many values that say that the offset is `floor`.
    """
    power, total = (weights * shapes**2).sum(axis=1) + 1e-12, weights.sum(axis=1) + pull
    cross, product = (weights * shapes).sum(axis=1), (weights * shapes) @ values
    determinant = np.maximum(power * total - cross**2, 1e-12 * power * total)
    offset = (power * (weights @ values + pull * floor) - cross * product) / determinant
    if values.min() >= 0:
        offset = np.maximum(offset, 0.0)
    return (product - cross * offset) / power, offset


def _huber(residuals: ArrayLike) -> Array:
    size = np.abs(np.asarray(residuals, dtype=np.float64))
    return np.where(size <= HUBER, 0.5 * size**2, HUBER * (size - 0.5 * HUBER))
