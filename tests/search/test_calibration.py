"""Calibration: how outcomes rate forecasts, and how the next forecasts learn from them."""

from statistics import NormalDist

import pytest

from search.curves.calibration import (
    FIRST_WEIGHT,
    MAX_OUTCOMES,
    ForecastOutcome,
    calibration,
    learned_weight,
    with_outcome,
    z_score,
)
from search.types import Forecast


def _forecast(*, tail=1.0, average=0.5):
    return Forecast(mean=0.8, std=0.1, status="ok", tail=tail, average=average)


def _outcomes(loss, *, num=1, **forecast):
    return tuple(ForecastOutcome(forecast=_forecast(**forecast), loss=loss) for _ in range(num))


def test_normal_errors_are_calibrated():
    found = calibration(NormalDist().inv_cdf((index + 0.5) / 1000) for index in range(1000))

    assert (found.within_1_std, found.within_2_std) == pytest.approx((0.683, 0.954), abs=0.002)
    assert found.mean_z == pytest.approx(0, abs=1e-9)


def test_without_an_outcome_nothing_is_claimed():
    found = calibration([])

    assert found.num_outcomes == 0
    assert found.within_1_std is found.within_2_std is found.mean_z is None


def test_a_z_score_counts_standard_deviations_above_the_forecast():
    assert z_score(0.3, mean=0.5, std=0.1) == pytest.approx(-2)
    assert z_score(0.3, mean=0.5, std=0.0) is None


def test_before_any_outcome_the_weight_is_the_one_that_selected_best():
    assert learned_weight(()) == FIRST_WEIGHT


@pytest.mark.parametrize("truth", [0.0, 0.5, 1.0])
def test_the_weight_goes_where_the_outcomes_lie(truth):
    outcomes = _outcomes(1.0 - 0.5 * truth, num=MAX_OUTCOMES)

    assert learned_weight(outcomes) == pytest.approx(truth, abs=0.01)


@pytest.mark.parametrize(("loss", "weight"), [(1.3, 0.0), (0.1, 1.0)])
def test_the_weight_stays_between_tail_and_average(loss, weight):
    assert learned_weight(_outcomes(loss, num=MAX_OUTCOMES)) == weight


def test_curves_that_led_nowhere_teach_nothing():
    assert learned_weight(_outcomes(0.9, average=1.0)) == pytest.approx(FIRST_WEIGHT)


def test_the_weight_does_not_depend_on_the_loss_s_unit():
    assert learned_weight(_outcomes(700.0, tail=1000.0, average=500.0)) == pytest.approx(learned_weight(_outcomes(0.7)))


def test_only_the_last_outcomes_that_can_teach_are_kept():
    outcomes = _outcomes(0.9, num=MAX_OUTCOMES)
    unfitted = Forecast(mean=0.8, std=0.1, status="no_progress")

    assert with_outcome(outcomes, unfitted, 0.8) == with_outcome(outcomes, _forecast(), None) == outcomes
    assert with_outcome(outcomes, _forecast(), 0.6) == (*outcomes[1:], *_outcomes(0.6))
