"""What a stage's surrogate says, on a grid: small enough to be stored with the decision, fine enough to be drawn."""

from typing import NamedTuple

import numpy as np

from search.space import Axis, Box
from search.surrogate import AnySurrogate
from search.types import GridAxis, Posterior, Values

#: Coordinates of an axis. Two axes make 1,024 points: some 20 kB of JSON.
NUM_COORDINATES = 32
DIGITS = 4


class Fit(NamedTuple):
    """A surrogate, and the box whose unit cube it works in."""

    surrogate: AnySurrogate
    box: Box


def on_grid(fit: Fit, like: Values) -> Posterior:
    """Return the posterior over two axes to 4 digits: the learning rate and the level, or else the next one.

    With one axis it is a line; values on further axes are those of `like`.
    """
    axes = fit.box.axes
    shown = [axes[0], *sorted(axes[1:], key=lambda axis: axis.name != "level")[:1]]
    grids = {axis.name: axis.grid(NUM_COORDINATES) if axis in shown else [getattr(like, axis.name)] for axis in axes}
    units = [[axis.to_unit(value) for value in grids[axis.name]] for axis in axes]
    points = np.stack(np.meshgrid(*units, indexing="ij"), axis=-1).reshape(-1, len(axes))
    mean, std = fit.surrogate.marginals(points)
    return Posterior(
        axes=tuple(_grid_axis(axis, grids[axis.name]) for axis in shown),
        mean=_rounded(mean.tolist()),
        std=_rounded(std.tolist()),
    )


def _grid_axis(axis: Axis, coordinates: list[float]) -> GridAxis:
    return GridAxis(name=axis.name, coordinates=_rounded(coordinates))


def _rounded(values: list[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.{DIGITS}g}") for value in values)
