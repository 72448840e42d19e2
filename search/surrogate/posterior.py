"""Tabulate a stage's surrogate on a grid: small enough to store with the decision, fine enough to draw."""

from itertools import product
from typing import NamedTuple

import numpy as np

from search.space import Axis, Box
from search.surrogate.model import AnySurrogate
from search.types import GridAxis, Posterior, Values

#: Coordinates of an axis. Two axes make 1,024 points: some 20 kB of JSON.
NUM_COORDINATES = 32
DIGITS = 4


class Fit(NamedTuple):
    """A surrogate, and the box whose unit cube it works in."""

    surrogate: AnySurrogate
    box: Box


def on_grid(fit: Fit, like: Values) -> Posterior:
    """Return the posterior over two axes, to 4 digits: the learning rate, and the level or else the next axis.

    With one axis it is a line. Values on further axes, and the exchange, are those of `like`.
    """
    rate, *others = [axis for axis in fit.box.axes if isinstance(axis, Axis)]
    shown = [rate, *sorted(others, key=lambda axis: axis.name != "level")[:1]]
    grids: dict[str, list[float]] = {axis.name: axis.grid(NUM_COORDINATES) for axis in shown}
    cells = [dict(zip(grids, cell, strict=True)) for cell in product(*grids.values())]
    mean, std = fit.surrogate.marginals(np.array([fit.box.to_unit(like.model_copy(update=cell)) for cell in cells]))
    return Posterior(
        axes=tuple(GridAxis(name=axis.name, coordinates=_rounded(grids[axis.name])) for axis in shown),
        mean=_rounded(mean.tolist()),
        std=_rounded(std.tolist()),
    )


def _rounded(values: list[float]) -> tuple[float, ...]:
    return tuple(float(f"{value:.{DIGITS}g}") for value in values)
