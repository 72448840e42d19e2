"""Where a controller may look: ranges of learning rate and level, and their map onto the unit cube."""

import math

from search.types import Value, Values


class SearchSpace(Value):
    """The guess, and the axes that are searched. All axes are logarithmic."""

    optimizer: str  # a key of OPTIMIZER_TRAITS
    guess: Values  # the user's values: the first stage's incumbent
    level_range: tuple[float, float] | None = None  # None: the level is not searched
    level_start: float | None = None  # the link rule's level, if `level_range` is given
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
