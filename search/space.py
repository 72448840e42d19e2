"""Where a controller may look: ranges of learning rate and level, and their map onto the unit cube."""

import math
from collections.abc import Sequence

from search.types import Value, Values


class SearchSpace(Value):
    """The guess, and the axes that are searched. All axes are logarithmic."""

    optimizer: str  # a key of OPTIMIZER_TRAITS
    guess: Values  # the user's values: the first stage's incumbent
    level_range: tuple[float, float] | None = None  # None: the level is not searched
    level_start: float | None = None  # the link rule's level, if `level_range` is given
    dense_bytes: int | None = None  # sent per step by one worker without compression; None: the link has no say
    max_learning_rate: float = 1e3
    min_learning_rate: float = 1e-8


def to_unit(value: float, low: float, high: float) -> float:
    """Map `value` in [`low`, `high`] to [0, 1] by its logarithm."""
    return math.log(value / low) / math.log(high / low)


def from_unit(unit: float, low: float, high: float) -> float:
    """Inverse of `to_unit`, exact at both ends."""
    if unit <= 0:
        return low
    return high if unit >= 1 else low * math.exp(unit * math.log(high / low))


class Box(Value):
    """A range of learning rates and, where the level is searched, of levels."""

    learning_rate: tuple[float, float]
    level: tuple[float, float] | None = None

    def to_unit(self, values: Values) -> tuple[float, ...]:
        """Map `values` to the unit cube: one coordinate, or two where the level is searched."""
        rate = to_unit(values.learning_rate, *self.learning_rate)
        if self.level is None:
            return (rate,)
        assert values.level is not None
        return (rate, to_unit(values.level, *self.level))

    def from_unit(self, point: Sequence[float], level: float | None) -> Values:
        """Inverse of `to_unit`; `level` is what the values get where it is not searched."""
        rate = from_unit(float(point[0]), *self.learning_rate)
        if self.level is not None:
            level = from_unit(float(point[1]), *self.level)
        return Values(learning_rate=rate, level=level)

    def corners(self, level: float | None) -> tuple[Values, Values]:
        """Return the values at the lower and at the upper end of every axis."""
        return self.from_unit((0.0, 0.0), level), self.from_unit((1.0, 1.0), level)

    def clip(self, values: Values) -> Values:
        """Move `values` into the box."""
        low, high = self.learning_rate
        level = values.level
        if self.level is not None and level is not None:
            level = min(self.level[1], max(self.level[0], level))
        return Values(learning_rate=min(high, max(low, values.learning_rate)), level=level)
