"""What a stage's surrogate says, on a grid: small enough to be stored with the decision, fine enough to be drawn."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from search.space import Box
from search.surrogate import Surrogate
from search.types import Axis, Posterior, Values

Array = NDArray[np.float64]

#: Coordinates of an axis. Two axes make 1,024 points: some 20 kB of JSON.
NUM_COORDINATES = 32
DIGITS = 4


class Belief(NamedTuple):
    """A surrogate, and the box whose unit cube it works in."""

    surrogate: Surrogate
    box: Box


def on_grid(belief: Belief, at: Values) -> Posterior:
    """Return the posterior over learning rate, and the level where it is searched, to 4 digits.

    `at`: values whose level holds where it is not searched.
    """
    names = ("learning_rate", "level")[: belief.surrogate.points.shape[1]]
    unit = np.linspace(0.0, 1.0, NUM_COORDINATES)
    points = np.stack(np.meshgrid(*[unit] * len(names), indexing="ij"), axis=-1).reshape(-1, len(names))
    mean, std = belief.surrogate.marginals(points)
    diagonal = [belief.box.from_unit((at_unit,) * len(names), at.level) for at_unit in unit.tolist()]
    axes = (Axis(name=name, coordinates=_rounded([getattr(each, name) for each in diagonal])) for name in names)
    return Posterior(axes=tuple(axes), mean=_rounded(mean.tolist()), std=_rounded(std.tolist()))


def _rounded(values: list[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.{DIGITS}g}") for value in values)
