"""Summaries of curves: short ones unchanged, long ones as block means that hide no divergence."""

import math

import numpy as np
import pytest

from search.curves.curve_summary import MAX_POINTS, Ending, Reading, thinned
from search.curves.events import Signs
from search.types import Observation, Spent


def _observation(losses, *, candidate_id="0-0"):
    return Observation(
        candidate_id=candidate_id,
        losses=tuple(losses),
        step_seconds=(1.0,) * (len(losses) // 10) + (0.01,) * (len(losses) - len(losses) // 10),
        bytes_sent=0,
        spent=Spent(),
    )


@pytest.mark.parametrize("num_steps", [0, 1, 20, MAX_POINTS])
def test_a_short_curve_is_kept_as_it_is(num_steps):
    losses = tuple(np.random.default_rng(0).normal(2, 0.1, num_steps).tolist())

    assert thinned(losses) == losses


@pytest.mark.parametrize("num_steps", [MAX_POINTS + 1, 799, 800, 50_001])
def test_a_long_curve_keeps_its_mean_and_its_end(num_steps):
    losses = np.random.default_rng(0).normal(2, 0.1, num_steps)
    size = math.ceil(num_steps / MAX_POINTS)

    points = thinned(losses.tolist())

    assert MAX_POINTS / 2 <= len(points) <= MAX_POINTS
    assert np.mean(points[1:]) == pytest.approx(losses[-size * (len(points) - 1) :].mean())
    assert points[-1] == pytest.approx(losses[-size:].mean())


@pytest.mark.parametrize("place", [0, 25_000, 50_000])
@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1e200])
def test_no_divergence_is_averaged_away(place, loss):
    losses = [2.0] * 50_001
    losses[place] = loss

    assert sum(math.isnan(point) for point in thinned(losses)) == 1


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_told_as_a_divergence_or_not_at_all(loss):
    told = {"candidate_id": None, "losses": (2.0, loss), "step_seconds": (), "bytes_sent": 0, "spent": Spent()}

    with pytest.raises(ValueError, match=r"`losses\[1\]` is not finite, got .*`diverged=True`"):
        Observation(**told)
    assert Observation(**told, diverged=True).losses == pytest.approx((2.0, loss), nan_ok=True)


def test_a_reading_keeps_the_first_losses_and_the_cost_of_a_step_after_calibration():
    losses = np.linspace(2, 1, 50_000).tolist()

    reading = Reading.of(_observation(losses))

    assert reading.opening == tuple(losses[:5])
    assert reading.step_seconds == pytest.approx(0.01)
    assert reading.steps_per_point == 125


@pytest.mark.parametrize(("num_steps", "num_read"), [(10, 10), (60, 20), (500, 100), (50_000, 200)])
def test_a_commit_ends_at_the_median_of_its_last_losses(num_steps, num_read):
    losses = np.linspace(2, 1, num_steps).tolist()

    ending = Ending.of(_observation(losses, candidate_id=None), Signs(), ())

    assert ending.end_loss == pytest.approx(np.median(losses[-num_read:]))
