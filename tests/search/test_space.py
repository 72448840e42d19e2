"""Every axis maps its legal values, and no others, from and to the unit cube."""

import numpy as np
import pytest

from search.space import Axis, Box, SearchSpace, are_within
from search.types import Values

AXES = {
    "level": Axis(name="level", low=0.003, high=0.1),
    "batch_size": Axis(name="batch_size", low=16, high=128),
    "momentum": Axis(name="momentum", low=0.8, high=0.98),
    "weight_decay": Axis(name="weight_decay", low=1e-5, high=1e-2),
    "nesterov": Axis(name="nesterov", low=False, high=True),
}
MIDDLES = {"level": 0.0173, "batch_size": 45, "momentum": 0.9368, "weight_decay": 3.16e-4}
GUESS = Values(learning_rate=0.1)


@pytest.mark.parametrize("name", AXES)
def test_an_axis_is_exact_at_its_ends_and_has_its_scales_middle(name):
    axis = AXES[name]

    assert (axis.from_unit(0.0), axis.from_unit(1.0)) == (axis.low, axis.high)
    assert axis.from_unit(0.5) == pytest.approx(MIDDLES.get(name, axis.from_unit(0.5)), rel=2e-3)
    assert isinstance(axis.from_unit(0.3), type(axis.low))


@pytest.mark.parametrize("name", AXES)
def test_from_unit_undoes_to_unit_and_rises(name):
    axis = AXES[name]
    values = axis.grid(30)

    assert values == sorted(set(values))
    assert [axis.from_unit(axis.to_unit(value)) for value in values] == pytest.approx(values, rel=1e-12)


def test_snapped_points_are_legal_values_and_the_rest_is_untouched():
    box = Box(axes=tuple(AXES.values()))
    points = np.random.default_rng(0).random((50, len(AXES)))
    snapped = box.snap(points)
    sizes = {box.from_unit(point, GUESS).batch_size for point in snapped}

    assert set(snapped[:, 4]) == {0.0, 1.0}
    assert all(isinstance(size, int) and 16 <= size <= 128 for size in sizes)
    assert snapped[:, [0, 2, 3]].tobytes() == points[:, [0, 2, 3]].tobytes()
    assert box.snap(snapped) == pytest.approx(snapped, abs=1e-12)


def test_what_is_not_searched_stays_as_it_was():
    box = Box(axes=(Axis(name="learning_rate", low=0.01, high=1.0), AXES["momentum"]))
    like = Values(learning_rate=0.5, level=0.02, momentum=0.9, nesterov=True)

    found = box.from_unit((0.0, 1.0), like)

    assert found == Values(learning_rate=0.01, level=0.02, momentum=0.98, nesterov=True)


def test_the_opening_is_the_guess_inside_its_axes_and_else_their_middle():
    guess = Values(learning_rate=0.1, level=0.5, nesterov=False)
    opening = SearchSpace(
        optimizer="sgd", guess=guess, axes=tuple(AXES[name] for name in ("level", "nesterov"))
    ).opening
    middle = SearchSpace(optimizer="sgd", guess=guess, axes=(AXES["momentum"], AXES["batch_size"])).opening

    assert opening == Values(learning_rate=0.1, level=0.1, nesterov=False)
    assert (middle.level, middle.batch_size) == (0.5, 45)
    assert middle.momentum == pytest.approx(1 - (0.2 * 0.02) ** 0.5)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ([AXES["level"].model_copy(update={"low": 0.1, "high": 0.003})], "`level`"),
        ([AXES["momentum"].model_copy(update={"high": 1.0})], "`momentum`"),
        ([AXES["weight_decay"].model_copy(update={"low": 0.0})], "`weight_decay`"),
        ([AXES["nesterov"].model_copy(update={"low": True})], "`nesterov`"),
        ([AXES["level"], AXES["level"]], "`axes`"),
        ([Axis(name="learning_rate", low=0.1, high=1.0)], "`axes`"),
        ([AXES[name] for name in ("level", "batch_size", "momentum", "weight_decay")], "at most 3"),
    ],
)
def test_axes_that_cannot_be_searched_are_named(axes, message):
    with pytest.raises(ValueError, match=message):
        SearchSpace(optimizer="sgd", guess=GUESS, axes=tuple(axes))


def test_nearness_of_momentum_is_that_of_its_distance_from_1():
    near, far = (GUESS.model_copy(update={"momentum": momentum}) for momentum in (0.95, 0.9))
    reference = GUESS.model_copy(update={"momentum": 0.98})

    assert are_within(reference, near, 3.0)
    assert not are_within(reference, far, 3.0)
    assert are_within(reference, GUESS, 3.0)  # without a momentum of its own nothing tells it apart


@pytest.mark.parametrize(("level_name", "sparsest"), [("density", 0.003), ("rank_fraction", 0.003), ("threshold", 0.1)])
def test_a_low_density_sends_least_and_so_does_a_high_threshold(level_name, sparsest):
    space = SearchSpace(optimizer="sgd", guess=GUESS, axes=(AXES["level"],), level_name=level_name)

    assert space.sparsest.level == sparsest
    assert sorted(space.sparse_first(AXES["level"])) == [0.003, 0.1]
    assert SearchSpace(optimizer="sgd", guess=GUESS).sparsest == GUESS
