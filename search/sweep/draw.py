"""Draw the samples of a sweep: points of the unit cube, and their values. Pure functions of the seed."""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from search.sweep.spec import MAX_SAMPLES, ParamRange, SampleValues, SweepConfig, num_combinations

Array = NDArray[np.float64]
#: This many points contain nearly all combinations of few values.
MANY_POINTS = 2048


def designed(params: Mapping[str, ParamRange], sweep: SweepConfig) -> list[SampleValues]:
    """Return the values of the samples that are drawn before anything is measured.

    No values come twice while there are others; then all come again.
    """
    num = sweep.num_designed(len(params))
    num_distinct = int(min(num, num_combinations(params)))
    draw = random_points if sweep.sampler == "random" else sobol_points
    found: list[SampleValues] = []
    for num_points in (num, MANY_POINTS):  # the fewer points are the first of the many
        points = draw(num_points, len(params), seed=sweep.seed)
        found = distinct(values_at(params, point) for point in points)
        if len(found) >= num_distinct:
            break
    else:
        found = distinct([*found, *combinations(params)])
    return list(itertools.islice(itertools.cycle(found[:num_distinct]), num))


def distinct(samples: Iterable[SampleValues]) -> list[SampleValues]:
    """Return each of `samples` where it comes first."""
    found: dict[str, SampleValues] = {}
    for values in samples:
        found.setdefault(json.dumps(values, sort_keys=True), values)
    return list(found.values())


def combinations(params: Mapping[str, ParamRange]) -> Iterator[SampleValues]:
    """Yield combinations of values in order: enough that some are new after the most samples of a sweep.

    There are none if a param takes any number between two ends.
    """
    if math.isinf(num_combinations(params)):
        return
    most = 2 * MAX_SAMPLES
    values = (of.first_values(most) for of in params.values())
    for each in itertools.islice(itertools.product(*values), most):
        yield dict(zip(params, each, strict=True))


def sobol_points(num: int, num_axes: int, *, seed: int) -> Array:
    """Return the first `num` scrambled Sobol points `(num, num_axes)` in [0, 1)."""
    from scipy.stats import qmc  # here: it takes 0.7 s to import, and few submissions have a sweep

    engine = qmc.Sobol(num_axes, scramble=True, rng=np.random.default_rng(seed))
    return np.asarray(engine.random_base2(math.ceil(math.log2(max(2, num))))[:num])


def random_points(num: int, num_axes: int, *, seed: int) -> Array:
    """Return `num` independent points `(num, num_axes)` in [0, 1)."""
    return np.random.default_rng(seed).random((num, num_axes))


def values_at(params: Mapping[str, ParamRange], point: Sequence[float] | Array) -> SampleValues:
    """Return the values by path that a point of the unit cube stands for."""
    return {path: _value(of, float(unit)) for (path, of), unit in zip(params.items(), point, strict=True)}


def _value(of: ParamRange, unit: float) -> JsonValue:
    if of.choice is not None:
        return of.choice[min(int(unit * len(of.choice)), len(of.choice) - 1)]
    if not of.is_whole:
        low, high = _scaled(of)
        return min(max(_back(of, low + unit * (high - low)), of.low), of.high)
    # Every whole number has a cell of its own, as wide as the scale makes it.
    low, high = (_scale(of, end) for end in (of.low - 0.5, of.high + 0.5))
    return min(max(round(_back(of, low + unit * (high - low))), int(of.low)), int(of.high))


def features(params: Mapping[str, ParamRange], values: SampleValues) -> list[float]:
    """Return the values as features of a surrogate: numbers in [0, 1], and one axis for each value of a choice."""
    found: list[float] = []
    for path, of in params.items():
        value = values[path]
        if of.choice is not None:
            found += [float(value == each) for each in of.choice]
        else:
            low, high = _scaled(of)
            found.append((_scale(of, float(value)) - low) / (high - low))  # type: ignore[arg-type]
    return found


def _scaled(of: ParamRange) -> tuple[float, float]:
    return _scale(of, of.low), _scale(of, of.high)


def _scale(of: ParamRange, value: float) -> float:
    return math.log(value) if of.is_log else value


def _back(of: ParamRange, scaled: float) -> float:
    return math.exp(scaled) if of.is_log else scaled
