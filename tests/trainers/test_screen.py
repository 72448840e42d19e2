"""The judgement of one rank on how far it went."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from trainers.exchange.node_links import NodeLinks
from trainers.exchange.pacing import Unpaced
from trainers.exchange.topology import Topology
from trainers.methods.sync.shared.screen import Outliers

WARMUP = 10


def _screen(max_z: float = 3.0) -> Outliers:
    return Outliers(max_z, WARMUP, NodeLinks(Topology.stated(1, 1), 0, Unpaced()))


def _takes_part(screen: Outliers, distance: float, *, path: float = 1.0, loss: float = 1.0) -> bool:
    """Whether this rank takes part, which nobody does if it does not."""
    return screen.weight(torch.tensor([distance]), loss, path) is not None


@given(st.lists(st.floats(0, 1e30), min_size=WARMUP, max_size=WARMUP))
def test_the_warm_up_leaves_nothing_finite_out(distances: list[float]):
    screen = _screen()

    assert all(_takes_part(screen, distance) for distance in distances)


@pytest.mark.parametrize(("distance", "loss"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf)])
def test_what_is_not_finite_is_left_out_at_once_and_forgotten(distance: float, loss: float):
    screen = _screen()
    before = screen.scalars()

    assert not _takes_part(screen, distance, loss=loss)
    assert screen.scalars() == before


def test_mean_and_variance_are_those_of_the_first_distances():
    screen = _screen()
    distances = [1.0, 2.0, 4.0, 7.0]
    for distance in distances:
        _takes_part(screen, distance)

    seen = torch.tensor(distances)
    assert screen.scalars()["mean"] == pytest.approx(float(seen.mean()))
    assert screen.scalars()["variance"] == pytest.approx(float(seen.var(correction=0)))


@pytest.mark.parametrize(("z", "takes_part"), [(2.9, True), (3.1, False)])
def test_a_distance_is_too_far_from_max_z_deviations_on(z: float, takes_part: bool):
    screen = _screen()
    for distance in (9.0, 11.0) * 8:
        assert _takes_part(screen, distance)

    assert _takes_part(screen, 10.0 + z) == takes_part


def test_a_distance_is_measured_per_unit_of_its_learning_rates():
    screen = _screen()
    for distance in (9.0, 11.0) * 8:
        _takes_part(screen, distance, path=1.0)

    assert _takes_part(screen, 1000.0, path=100.0)
    assert not _takes_part(screen, 10.0, path=0.1)


def test_a_change_that_lasts_is_let_in_after_a_while():
    screen = _screen()
    for distance in (0.9, 1.1) * 25:
        _takes_part(screen, distance)

    taken = [_takes_part(screen, distance) for distance in (1.9, 2.1) * 25]
    assert not any(taken[:10]) and all(taken[40:])


def test_a_worker_that_has_not_moved_so_far_may_begin_to():
    screen = _screen()

    taken = [_takes_part(screen, distance) for distance in [0.0] * (WARMUP + 3) + [2.0] * 100]

    assert all(taken[: WARMUP + 4]) and all(taken[-20:])
