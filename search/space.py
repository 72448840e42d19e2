"""Where a controller may look: the axes of the search, and their map onto the unit cube."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from search.config import MAX_DIMENSIONS
from search.types import Value, Values

Array = NDArray[np.float64]
AxisName = Literal[
    "learning_rate", "level", "batch_size", "momentum", "weight_decay", "nesterov", "period", "gamma", "share"
]
Scale = Literal["log", "complement", "integer", "choice"]

#: What an axis is measured in. `complement`: the logarithm of 1 - x. `integer`: the logarithm, rounded. `choice`: false
#: or true, 0 and 1 on the unit cube, where a kernel with a length scale of its own is one of the Hamming distance.
SCALES: dict[AxisName, Scale] = {
    "learning_rate": "log",
    "level": "log",
    "batch_size": "integer",
    "momentum": "complement",
    "weight_decay": "log",
    "nesterov": "choice",
    "period": "integer",
    "gamma": "complement",
    "share": "log",
}


def magnitude(name: AxisName, value: float) -> float:
    """Return the positive number whose logarithm is the coordinate of `value`; it rises with `value`."""
    scale = SCALES[name]
    if scale == "complement":
        return 1 / (1 - value)
    return 1.0 + value if scale == "choice" else float(value)


def of_magnitude(name: AxisName, size: float) -> float:
    """Return the legal value nearest to the magnitude `size`: the inverse of `magnitude`."""
    match SCALES[name]:
        case "complement":
            return 1 - 1 / size
        case "integer":
            return round(size)
        case "choice":
            return size * size >= 2  # nearer to 2 than to 1, by their logarithms
        case "log":
            return size


class Axis(Value):
    """A range of one of the values, ends included."""

    name: AxisName
    low: bool | int | float
    high: bool | int | float

    def to_unit(self, value: float) -> float:
        """Map `value` to [0, 1] by the logarithm of its magnitude."""
        low, high = magnitude(self.name, self.low), magnitude(self.name, self.high)
        return math.log(magnitude(self.name, value) / low) / math.log(high / low)

    def from_unit(self, unit: float) -> float:
        """Inverse of `to_unit`, exact at both ends; between legal values, the nearest."""
        if unit <= 0 or unit >= 1:
            return self.low if unit <= 0 else self.high
        low, high = magnitude(self.name, self.low), magnitude(self.name, self.high)
        return of_magnitude(self.name, low * math.exp(unit * math.log(high / low)))

    def clip(self, value: float) -> float:
        """Move `value` into the range."""
        return min(self.high, max(self.low, value))

    def times(self, value: float, factor: float) -> float:
        """Multiply the magnitude of `value` by `factor`, as far as the range goes."""
        return self.clip(of_magnitude(self.name, magnitude(self.name, value) * factor))

    def around(self, value: float, factor: float) -> "Axis":
        """Return the part of the range within `factor` of `value`."""
        return Axis(name=self.name, low=self.times(value, 1 / factor), high=self.times(value, factor))

    def grid(self, num_points: int) -> list[float]:
        """Return at most `num_points` legal values from end to end, evenly spaced on the axis's scale."""
        if self.low == self.high:
            return [self.low]
        return list(dict.fromkeys(self.from_unit(float(unit)) for unit in np.linspace(0.0, 1.0, num_points)))


class SearchSpace(Value):
    """The guess, and the axes that are searched beside the learning rate."""

    optimizer: str  # a key of OPTIMIZER_TRAITS
    guess: Values  # the user's values, and where each axis opens: the first stage's incumbent
    axes: tuple[Axis, ...] = ()
    level_name: str = "level"  # what the exchange calls its level: density, threshold
    dense_bytes: int | None = None  # sent per step by one worker without compression; None: the link has no say
    max_learning_rate: float = 1e3
    min_learning_rate: float = 1e-8

    @model_validator(mode="after")
    def _axes_are_ranges(self) -> "SearchSpace":
        names = [axis.name for axis in self.axes]
        if "learning_rate" in names or len(set(names)) < len(names) or len(names) >= MAX_DIMENSIONS:
            raise ValueError(
                f"`axes` must name at most {MAX_DIMENSIONS - 1} distinct values besides the learning rate, got {names}"
            )
        for axis in self.axes:
            if not _is_range(axis):
                raise ValueError(f"`{axis.name}` must be searched in (low, high) with low < high, both of them legal, "
                                 f"got ({axis.low}, {axis.high})")  # fmt: skip
        return self

    @property
    def opening(self) -> Values:
        """The guess, moved into every axis; where it says nothing, the axis's middle."""
        given = {axis.name: getattr(self.guess, axis.name) for axis in self.axes}
        return self.guess.model_copy(
            update={
                axis.name: axis.from_unit(0.5) if given[axis.name] is None else axis.clip(given[axis.name])
                for axis in self.axes
            }
        )

    def axis(self, name: AxisName) -> Axis | None:
        """Return the axis of that name, or None if it is not searched."""
        return next((axis for axis in self.axes if axis.name == name), None)

    @property
    def further(self) -> tuple[Axis, ...]:
        """The axes beyond learning rate and level."""
        return tuple(axis for axis in self.axes if axis.name != "level")


def _is_range(axis: Axis) -> bool:
    match SCALES[axis.name]:
        case "complement":
            return 0 < axis.low < axis.high < 1
        case "choice":
            return (axis.low, axis.high) == (False, True)
        case _:
            return 0 < axis.low < axis.high


class Box(Value):
    """A range of each value that is searched, the learning rate's first."""

    axes: tuple[Axis, ...]

    @property
    def learning_rate(self) -> tuple[float, float]:
        """The lowest and the highest learning rate."""
        return self.axes[0].low, self.axes[0].high

    def to_unit(self, values: Values) -> tuple[float, ...]:
        """Map `values` to the unit cube: a coordinate per axis."""
        return tuple(axis.to_unit(getattr(values, axis.name)) for axis in self.axes)

    def from_unit(self, point: Sequence[float], like: Values) -> Values:
        """Inverse of `to_unit`; what is not searched is that of `like`."""
        found: dict[str, float] = {
            axis.name: axis.from_unit(float(unit)) for axis, unit in zip(self.axes, point, strict=True)
        }
        return like.model_copy(update=found)

    def corners(self, like: Values) -> tuple[Values, Values]:
        """Return the values at the lower and at the upper end of every axis."""
        num_axes = len(self.axes)
        return self.from_unit((0.0,) * num_axes, like), self.from_unit((1.0,) * num_axes, like)

    def clip(self, values: Values) -> Values:
        """Move `values` into the box."""
        return values.model_copy(update={axis.name: axis.clip(getattr(values, axis.name)) for axis in self.axes})

    def snap(self, points: Array) -> Array:
        """Move `points` `(m, d)` of the unit cube onto legal values: whole numbers, false or true."""
        snapped = points.copy()
        for column, axis in enumerate(self.axes):
            if SCALES[axis.name] in ("integer", "choice"):
                legal = [axis.to_unit(axis.from_unit(unit)) for unit in points[:, column].tolist()]
                snapped[:, column] = legal
        return snapped


def _pairs(first: Values, second: Values, names: Sequence[AxisName]) -> Iterator[tuple[float, float]]:
    """Yield the magnitudes of what both set."""
    for name in names:
        one: Any = getattr(first, name)
        other: Any = getattr(second, name)
        if one is not None and other is not None:
            yield magnitude(name, one), magnitude(name, other)


def distance(first: Values, second: Values, names: Sequence[AxisName] = tuple(SCALES)) -> float:
    """Return the Euclidean distance of the logarithms of the magnitudes of `names`."""
    return math.hypot(*(math.log(one / other) for one, other in _pairs(first, second, names)))


def are_within(first: Values, second: Values, factor: float, names: Sequence[AxisName] = tuple(SCALES)) -> bool:
    """Whether the magnitudes of each of `names` lie within `factor` of each other."""
    return all(max(pair) <= factor * min(pair) for pair in _pairs(first, second, names))
