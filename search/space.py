"""The search space: the axes of the search, and their map onto the unit cube."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from search.budget.link import Link, OptionCost, StepCost
from search.config import MAX_DIMENSIONS
from search.optimizer_traits import OPTIMIZER_TRAITS
from search.types import MAX_LEARNING_RATE, MIN_LEARNING_RATE, SEARCHED, Value, Values

Array = NDArray[np.float64]
#: The ratio of two options, in place of one of magnitudes: larger than any factor that is compared with it.
OPTIONS_APART = 100.0


def magnitude(name: str, value: float) -> float:
    """Return the positive number whose logarithm is the coordinate of `value`; it grows with `value`."""
    scale = SEARCHED[name].scale
    if scale == "complement":
        return 1 / (1 - value)
    return 1.0 + value if scale == "choice" else float(value)


def of_magnitude(name: str, size: float) -> float:
    """Return the legal value nearest to the magnitude `size`: the inverse of `magnitude`."""
    match SEARCHED[name].scale:
        case "complement":
            return 1 - 1 / size
        case "integer":
            return round(size)
        case "choice":
            return size * size >= 2  # nearer to 2 than to 1, by their logarithms
        case _:
            return size


class Axis(Value):
    """The range of a searched value, ends included."""

    name: str
    low: bool | int | float
    high: bool | int | float

    @field_validator("name")
    @classmethod
    def _is_searched(cls, name: str) -> str:
        axes = [each for each, searched in SEARCHED.items() if searched.scale != "name"]
        if name not in axes:
            raise ValueError(f"`name` must be one of {axes}, got {name!r}")
        return name

    @property
    def is_discrete(self) -> bool:
        """Return whether the values are whole numbers, or false and true."""
        return SEARCHED[self.name].scale in ("integer", "choice")

    @property
    def num_coordinates(self) -> int:
        """The number of its coordinates in the unit cube."""
        return 1

    def coordinates(self, value: float) -> tuple[float, ...]:
        """Return the coordinates of `value` in the unit cube."""
        return (self.to_unit(value),)

    def of_coordinates(self, point: Sequence[float]) -> float:
        """Return the legal value nearest to the coordinates `point`: the inverse of `coordinates`."""
        return self.from_unit(point[0])

    def bounds(self, region: "Axis") -> tuple[Array, Array]:
        """Return the lowest and the highest coordinates of `region`, which lies in this range."""
        return np.array(self.coordinates(region.low)), np.array(self.coordinates(region.high))

    def opening(self, value: float | None) -> float:
        """Return the first value of a run: `value` moved into the range, or the middle if it is None."""
        return self.from_unit(0.5) if value is None else self.clip(value)

    def to_unit(self, value: float) -> float:
        """Map `value` to [0, 1] by the logarithm of its magnitude."""
        low, high = magnitude(self.name, self.low), magnitude(self.name, self.high)
        return math.log(magnitude(self.name, value) / low) / math.log(high / low)

    def from_unit(self, unit: float) -> float:
        """Return the legal value nearest to `unit`: the inverse of `to_unit`, exact at both ends."""
        if unit <= 0 or unit >= 1:
            return self.low if unit <= 0 else self.high
        low, high = magnitude(self.name, self.low), magnitude(self.name, self.high)
        return of_magnitude(self.name, low * math.exp(unit * math.log(high / low)))

    def clip(self, value: float) -> float:
        """Move `value` into the range."""
        return min(self.high, max(self.low, value))

    def times(self, value: float, factor: float) -> float:
        """Multiply the magnitude of `value` by `factor`, within the range."""
        return self.clip(of_magnitude(self.name, magnitude(self.name, value) * factor))

    def around(self, value: float, factor: float) -> "Axis":
        """Return the part of the range within `factor` of `value`."""
        return Axis(name=self.name, low=self.times(value, 1 / factor), high=self.times(value, factor))

    def moves(self, value: float, factor: float) -> list[float]:
        """Return the values a `factor` above `value` and below it."""
        return [self.times(value, factor), self.times(value, 1 / factor)]

    def among(self, values: Sequence[float]) -> "Axis":
        """Return the range from the lowest to the highest of `values`."""
        return Axis(name=self.name, low=min(values), high=max(values))

    def grid(self, num_points: int) -> list[float]:
        """Return at most `num_points` legal values from end to end, evenly spaced on the axis's scale."""
        if self.low == self.high:
            return [self.low]
        return list(dict.fromkeys(self.from_unit(float(unit)) for unit in np.linspace(0.0, 1.0, num_points)))


class OptionAxis(Value):
    """Several exchanges, from dense to sparse, of which one is used. The order matters for moves alone.

    On the unit cube each has a coordinate: 1 if it is used, else 0. A kernel with a length scale per coordinate then
    measures the Hamming distance.
    """

    name: Literal["option"] = "option"
    options: tuple[str, ...]

    @property
    def is_discrete(self) -> bool:
        """Return True: there is nothing between two options."""
        return True

    @property
    def num_coordinates(self) -> int:
        """The number of its coordinates in the unit cube."""
        return len(self.options)

    def coordinates(self, value: str) -> tuple[float, ...]:
        """Return the coordinates of an option; zeros if it is not among these."""
        return tuple(float(option == value) for option in self.options)

    def of_coordinates(self, point: Sequence[float]) -> str:
        """Return the option whose coordinate is the largest."""
        return self.options[int(np.argmax(point))]

    def bounds(self, region: "OptionAxis") -> tuple[Array, Array]:
        """Return the lowest and the highest coordinates of `region`, which has some of these options."""
        return np.zeros(len(self.options)), np.array([float(option in region.options) for option in self.options])

    def opening(self, value: str | None) -> str:
        """Return the first option of a run: `value`, or the densest if it is None."""
        return self.options[0] if value is None else value

    def clip(self, value: str) -> str:
        """Return `value` as it is: options have no range."""
        return value

    def around(self, value: str, factor: float) -> "OptionAxis":
        """Return all options: none is far from another."""
        return self

    def moves(self, value: str, factor: float = 1.0) -> list[str]:
        """Return the next denser and the next sparser option; the first and the last, if `value` is none of them."""
        if value not in self.options:
            return [self.options[0], self.options[-1]]
        place = self.options.index(value)
        return [self.options[other] for other in (place - 1, place + 1) if 0 <= other < len(self.options)]

    def among(self, values: Sequence[str]) -> "OptionAxis":
        """Return the axis of those options that are in `values`."""
        return OptionAxis(options=tuple(option for option in self.options if option in values))

    def grid(self, num_points: int) -> list[str]:
        """Return all options."""
        return list(self.options)


AnyAxis = Axis | OptionAxis


class Weights(NamedTuple):
    """The number of matrices that a model trains, and the size of their entries before the first step.

    `scale` is the geometric mean of the matrices' root mean squares. Matrices of zeros do not count.
    """

    num_matrices: int
    scale: float
    is_new: bool = True  # False: the model is known to have been trained before


class SearchSpace(Value):
    """The guess, and the axes that are searched beside the learning rate."""

    optimizer: str  # a key of OPTIMIZER_TRAITS
    chosen_because: str = ""  # why this optimizer, if it was chosen from several before the first step
    guess: Values  # the user's values, and where each axis opens: the first stage's incumbent
    axes: tuple[AnyAxis, ...] = ()
    level_name: str = "level"  # what the exchange calls its level: density, threshold
    period: int = Field(1, ge=1)  # steps between averages of workers that train apart; 1: they exchange every step
    periods: tuple[tuple[str, int], ...] = ()  # the same, by competing exchange that has one
    dense_bytes: int | None = None  # sent per step by one worker without compression; None: the link is ignored
    level_bytes: tuple[tuple[float, float], ...] = ()  # the same by level, in rising order; (): in proportion to it
    menu: tuple[str, ...] = ()  # every exchange that may be used, whether or not it competes; dense first
    teaching: tuple[tuple[str, float], ...] = ()  # by exchange: what a step teaches, as a share of a dense step
    exchanges: tuple[OptionCost, ...] = ()  # all that may compete, if the competing ones follow the link
    link: Link | None = None  # as measured before the first step; None: not measured
    step: StepCost | None = None  # the cost of a step as measured before the first one; None: not measured
    evaluation_s: float = Field(0.0, ge=0)  # that evaluations add to a step of the committed line; 0: not measured
    num_alone: int = Field(1, ge=1)  # coarse probes at a time, each by one worker alone; 1: all workers train each
    num_lanes: int = Field(1, ge=1)  # groups of workers that probe side by side
    alone_s: float | None = Field(None, ge=0)  # seconds of a step of one worker alone, at most; None: not known
    batch_size: int | None = Field(None, ge=1)  # samples in a step of a coarse probe; None: not known
    weights: Weights | None = None  # None: not known
    first_loss: float | None = None  # of the model before its first step; None: not known
    sharpness: float | None = Field(None, gt=0)  # how much the gradient turns there; None: not known
    momentum: float = Field(0.9, ge=0, lt=1)  # of SGD
    warms_up: bool = False  # whether the optimizer itself raises the rate in a run's first steps
    starts_over: bool = False  # whether the run can go back to its first step
    rewinds_data: bool = True  # whether all probes see the same batches; False: each gets the loop's next ones
    max_learning_rate: float = MAX_LEARNING_RATE
    min_learning_rate: float = MIN_LEARNING_RATE

    @model_validator(mode="before")
    @classmethod
    def _without_what_competed(cls, given: Any) -> Any:
        """Read the space of an earlier release, which also lists optimizers that competed (mostly none)."""
        return {name: given[name] for name in given if name != "optimizers"} if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _axes_are_ranges(self) -> "SearchSpace":
        names = [axis.name for axis in self.axes]
        if "learning_rate" in names or len(set(names)) < len(names) or len(names) >= MAX_DIMENSIONS:
            raise ValueError(
                f"`axes` must name at most {MAX_DIMENSIONS - 1} distinct values besides the learning rate, got {names}"
            )
        if len(set(self.options)) != len(self.options) or (len(self.options) == 1):
            raise ValueError(f"`options` must be several and distinct, got {self.options}")
        for axis in self.ranges:
            if not _is_range(axis):
                raise ValueError(f"`{axis.name}` must be searched in (low, high) with low < high, both of them legal, "
                                 f"got ({axis.low}, {axis.high})")  # fmt: skip
        return self

    def check_guess(self) -> None:
        """Raise ValueError for an unknown optimizer, or a guess outside the range of rates."""
        known, (low, high) = sorted(OPTIMIZER_TRAITS), (self.min_learning_rate, self.max_learning_rate)
        rate = self.guess.learning_rate
        if self.optimizer not in known:
            raise ValueError(f"`optimizer` must be one of {known}, got {self.optimizer!r}.")
        if not low <= rate <= high:
            raise ValueError(f"`guess.learning_rate` must be in [{low:g}, {high:g}], got {rate:g}.")

    @property
    def opening(self) -> Values:
        """The guess, moved into every axis; the middle of an axis that it does not set."""
        return self.guess.model_copy(
            update={axis.name: axis.opening(getattr(self.guess, axis.name)) for axis in self.axes}
        )

    def bytes_at(self, level: float) -> float | None:
        """Return what one worker sends in a step at `level`, a density; None: not known."""
        if self.level_bytes:
            return float(np.interp(level, *np.transpose(self.level_bytes)))
        return None if self.dense_bytes is None else level * self.dense_bytes

    @property
    def sparsest(self) -> Values:
        """The opening values, at the searched level that sends the least."""
        axis = self.axis("level")
        return self.opening if axis is None else self.opening.model_copy(update={"level": self.sparse_first(axis)[0]})

    def sparse_first(self, axis: Axis) -> tuple[float, float]:
        """Return the ends of an `axis` of levels, the one that sends less first: a high threshold, a low density."""
        return (axis.high, axis.low) if self.level_name == "threshold" else (axis.low, axis.high)

    @property
    def ranges(self) -> tuple[Axis, ...]:
        """The axes with a scale."""
        return tuple(axis for axis in self.axes if isinstance(axis, Axis))

    @property
    def options(self) -> tuple[str, ...]:
        """The competing exchanges, from dense to sparse; empty if none compete."""
        return next((axis.options for axis in self.axes if isinstance(axis, OptionAxis)), ())

    @property
    def synchronous(self) -> tuple[str, ...]:
        """The competing exchanges with which workers train as one, exchanging in every step."""
        return tuple(option for option in self.options if self.period_of_option(option) == 1)

    def period_of_option(self, option: str | None) -> int:
        """Return the steps between averages with this competing exchange; 1 if it has no period."""
        return dict(self.periods).get(option or "", 1)

    def period_of(self, values: Values) -> int:
        """Return the steps between averages with `values`; 1: workers never train apart."""
        return values.period or dict(self.periods).get(values.option or "", self.period)

    @property
    def longest_period(self) -> int:
        """The most steps between averages, over all values that may be tried."""
        searched = self.axis("period")
        of_options = [number for option, number in self.periods if option in (*self.options, self.guess.option)]
        return max(self.period, *of_options, 1 if searched is None else int(searched.high))

    def axis(self, name: str) -> Axis | None:
        """Return the axis of that name, or None if it is not searched."""
        return next((axis for axis in self.ranges if axis.name == name), None)

    @property
    def decides_costs(self) -> bool:
        """True if the cost of a step depends on a value that is searched, or may be later."""
        return bool(self.exchanges) or any(SEARCHED[axis.name].costs for axis in self.axes)

    @property
    def further(self) -> tuple[Axis, ...]:
        """The axes with a scale, beyond learning rate and level."""
        return tuple(axis for axis in self.ranges if axis.name != "level")


def _is_range(axis: Axis) -> bool:
    match SEARCHED[axis.name].scale:
        case "complement":
            return 0 < axis.low < axis.high < 1
        case "choice":
            return (axis.low, axis.high) == (False, True)
        case _:
            return 0 < axis.low < axis.high


class Box(Value):
    """A range of each searched value, the learning rate first."""

    axes: tuple[AnyAxis, ...]

    @property
    def rates(self) -> Axis:
        """The range of learning rates."""
        assert isinstance(self.axes[0], Axis)
        return self.axes[0]

    @property
    def learning_rate(self) -> tuple[float, float]:
        """The lowest and the highest learning rate."""
        return self.rates.low, self.rates.high

    def spans(self) -> Iterator[tuple[Any, slice]]:
        """Yield each axis, and the slice of its coordinates in a point of the unit cube."""
        start = 0
        for axis in self.axes:
            yield axis, slice(start, start + axis.num_coordinates)
            start += axis.num_coordinates

    def to_unit(self, values: Values) -> tuple[float, ...]:
        """Map `values` to a point `(d,)` of the unit cube: a coordinate per axis with a scale, one per option."""
        return tuple(chain.from_iterable(axis.coordinates(getattr(values, axis.name)) for axis, _ in self.spans()))

    def from_unit(self, point: Sequence[float], like: Values) -> Values:
        """Return the values at `point`: the inverse of `to_unit`. Values that are not searched are those of `like`."""
        return like.model_copy(update={axis.name: axis.of_coordinates(point[span]) for axis, span in self.spans()})

    def bounds(self, region: "Box") -> Array:
        """Return the lowest and the highest coordinates `(2, d)` of `region`, which has the same axes, in this box."""
        parts = [axis.bounds(part) for (axis, _), part in zip(self.spans(), region.axes, strict=True)]
        return np.stack([np.concatenate(ends) for ends in zip(*parts, strict=True)])

    def clip(self, values: Values) -> Values:
        """Move `values` into the box."""
        return values.model_copy(update={axis.name: axis.clip(getattr(values, axis.name)) for axis, _ in self.spans()})

    def snap(self, points: Array) -> Array:
        """Move `points` `(m, d)` of the unit cube onto legal values: whole numbers, false or true, options."""
        snapped = points.copy()
        for axis, span in self.spans():
            if axis.is_discrete:
                legal = [axis.coordinates(axis.of_coordinates(row)) for row in points[:, span].tolist()]
                snapped[:, span] = legal
        return snapped


def _pairs(first: Values, second: Values, names: Iterable[str]) -> Iterator[tuple[float, float]]:
    """Yield the magnitudes of the values that both set. All pairs of options are equally far apart."""
    for name in names:
        one: Any = getattr(first, name)
        other: Any = getattr(second, name)
        if one is None or other is None:
            continue
        if SEARCHED[name].scale == "name":
            yield 1.0, (1.0 if one == other else OPTIONS_APART)
        else:
            yield magnitude(name, one), magnitude(name, other)


def distance(first: Values, second: Values, names: Iterable[str] = SEARCHED) -> float:
    """Return the Euclidean distance of the logarithms of the magnitudes of `names`."""
    return math.hypot(*(math.log(one / other) for one, other in _pairs(first, second, names)))


def are_within(first: Values, second: Values, factor: float, names: Iterable[str] = SEARCHED) -> bool:
    """Return whether the magnitudes of each of `names` lie within `factor` of each other."""
    return all(max(pair) <= factor * min(pair) for pair in _pairs(first, second, names))
