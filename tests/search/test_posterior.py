"""The posterior stored with a decision equals the surrogate's, and is small."""

import numpy as np
import pytest

from search.space import Axis, Box
from search.surrogate.acquisition import sobol_points
from search.surrogate.model import Surrogate
from search.surrogate.posterior import NUM_COORDINATES, Fit, on_grid
from search.types import Values

AXES = (
    Axis(name="learning_rate", low=1e-3, high=10.0),
    Axis(name="momentum", low=0.8, high=0.98),
    Axis(name="level", low=0.003, high=0.1),
)
LIKE = Values(learning_rate=0.1, level=0.02, momentum=0.9)


def _fit(*axes):
    points = sobol_points(9, np.array([[0.0], [1.0]]) * np.ones(len(axes)), seed=0)
    return Fit(Surrogate(points, np.sin(3 * points[:, 0]) + points.sum(axis=1), np.full(9, 1e-4)), Box(axes=axes))


@pytest.mark.parametrize("axes", [AXES[:1], AXES[::2], AXES], ids=["1-d", "2-d", "3-d"])
def test_the_grid_holds_the_surrogate_s_belief_about_its_values(axes):
    fit = _fit(*axes)

    found = on_grid(fit, LIKE)
    names = [axis.name for axis in found.axes]
    row, column = 20, 5
    index = row if len(names) == 1 else row * NUM_COORDINATES + column
    shown = {name: axis.coordinates[at] for name, axis, at in zip(names, found.axes, (row, column), strict=False)}
    mean, covariance = fit.surrogate.joint(np.array([fit.box.to_unit(LIKE.model_copy(update=shown))]))

    assert names == (["learning_rate"] if len(axes) == 1 else ["learning_rate", "level"])
    assert len(found.mean) == len(found.std) == NUM_COORDINATES ** len(names)
    assert found.mean[index] == pytest.approx(mean[0], abs=5e-3)  # of coordinates that are rounded themselves
    assert found.std[index] == pytest.approx(covariance[0, 0] ** 0.5, abs=5e-3)


def test_a_posterior_takes_less_than_30_kb_of_json():
    assert len(on_grid(_fit(*AXES[::2]), LIKE).model_dump_json()) < 30_000
