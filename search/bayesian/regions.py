"""Boxes of values: around those that were tried, and the trust region of a later stage."""

from collections.abc import Sequence

from search.bayesian.setup import SearchSetup
from search.space import Axis, Box
from search.types import Values


def trust_region(setup: SearchSetup, incumbent: Values, *, may_rise: bool, width: float = 1.0) -> Box:
    """Return the trust region of a later stage: limits ** `width` around `incumbent`, within the space."""
    config, space = setup.config, setup.space
    rate = incumbent.learning_rate
    high = min(space.max_learning_rate, rate * (config.max_up**width if may_rise else 1.0))
    low = max(space.min_learning_rate, rate * config.max_down**width)
    rates = Axis(name="learning_rate", low=min(low, high), high=high)
    move = config.max_level_move**width
    others = (axis.around(getattr(incumbent, axis.name), move) for axis in space.axes)
    return Box(axes=(rates, *others))


def bounding_box(setup: SearchSetup, values: Sequence[Values], region: Box | None = None) -> Box:
    """Return the smallest box of learning rates around `values` and `region`, over the whole range of other axes."""
    rates = [value.learning_rate for value in values] + list(region.learning_rate if region else ())
    low, high = min(rates), max(rates)
    if high < 1.01 * low:
        low, high = low / 2, high * 2  # a cube needs a width
    return Box(axes=(Axis(name="learning_rate", low=low, high=high), *setup.space.axes))
