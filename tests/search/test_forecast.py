"""The forecaster is as accurate and as certain as it claims, ignores spikes, and accepts any input."""

import math
import time

import numpy as np
import pytest
from forecasts import coverage
from hypothesis import given, settings, strategies as st
from loss_curves import SHAPES, Question, followed, recorded, synthetic

from search.curves.forecast import forecast_loss, has_diverged, median


@given(st.lists(st.floats(-1e12, 1e12) | st.sampled_from([math.nan, math.inf, -math.inf]), min_size=1))
def test_the_median_is_numpys_in_every_bit(values):
    with np.errstate(invalid="ignore"):  # the mean of both infinities
        np.testing.assert_array_equal(median(values), np.median(values))


@pytest.mark.parametrize(("seen", "median", "most"), [(50, 0.2, 36.0), (100, 0.135, 7.0), (240, 0.068, 1.4)])
def test_the_average_of_curves_is_as_accurate_as_measured_on_300_synthetic_series(seen, median, most):
    errors = []
    for shape in SHAPES:
        for seed in range(20):
            losses, horizon, truth = synthetic(shape, seed, seen=seen)
            errors.append(abs(forecast_loss(losses, horizon, weight=1.0).mean - truth))

    assert np.median(errors) <= median
    assert np.quantile(errors, 0.9) <= most


@pytest.mark.parametrize("status", ["ok", "no_progress"])
def test_real_losses_lie_within_the_standard_deviations_as_often_as_they_should(status):
    questions = [each for each in followed() if _status(each) == status]

    found = coverage(questions)

    assert found.num_outcomes > 100
    assert 0.60 <= found.within_1_std <= 0.80
    assert 0.90 <= found.within_2_std <= 0.98


def test_the_standard_deviations_cover_tasks_that_they_were_not_fitted_to():
    lines = [line for line in recorded() if line.name.count("/") == 2]
    found = coverage(
        [
            Question(line.name, losses, line.level, line.horizon, truth)
            for line in lines
            for losses, truth in zip(line.losses, line.truth, strict=True)
            if len(losses) == line.seen
        ]
    )

    assert 0.60 <= found.within_1_std <= 0.85
    assert 0.88 <= found.within_2_std <= 0.98


def _status(question):
    return forecast_loss(question.losses, question.horizon, start=question.level).status


def _noisy(num_points, noise, rng):
    times = np.arange(num_points)
    return (0.6 + 1.6 * np.exp(-2 * times / num_points)) * (1 + rng.normal(0, noise, num_points))


@pytest.mark.parametrize("noise", [0.05, 0.1, 0.2])
@pytest.mark.parametrize(
    ("spiked", "bound"), [(slice(0, 1), 0.02), (slice(-1, None), 0.02), (slice(0, 3), 0.08), (slice(-3, None), 0.08)]
)
def test_bad_losses_at_an_end_change_no_verdict(noise, spiked, bound):
    false = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        losses = _noisy((20, 50, 100)[seed % 3], noise, rng)
        losses[spiked] *= rng.uniform(2, 50)
        false.append(forecast_loss(losses, 1000, start=2.2).status != "ok")

    assert np.mean(false) <= bound  # smoothing that repeats the end calls 9 in 10 an overshoot or a divergence


@pytest.mark.parametrize("size", [1e6, 1e60, -1e60])
def test_one_absurd_loss_hardly_moves_the_forecast(size):
    losses, horizon, _ = synthetic("exponential_slow", 0)
    spiked = [*losses[:-1], size]

    plain, other = (forecast_loss(each, horizon, start=2.2) for each in (losses, spiked))

    assert other.status == "ok"
    assert other.mean == pytest.approx(plain.mean, abs=0.3 * plain.std)


@pytest.mark.parametrize("num_points", [20, 50, 100, 240])
@pytest.mark.parametrize("rising", [8, 16])
def test_a_curve_that_rises_at_its_end_has_diverged(num_points, rising):
    for seed in range(20):
        losses = _noisy(num_points, 0.1, np.random.default_rng(seed))
        losses[-rising:] = np.geomspace(2.5, 50.0, rising)

        assert forecast_loss(losses, 10 * num_points, start=2.2).status == "diverged"


@pytest.mark.parametrize(
    "losses", [[-0.04, 0.02], [0.01, -0.04, 0.03, 0.02], [-0.04, 0.06, -0.11, 0.03, -0.1, 0.05, 0.0]]
)
def test_noise_about_zero_is_no_divergence_and_a_blow_up_there_is_one(losses):
    assert not has_diverged(losses, start=-0.01) and not has_diverged(losses, start=0.013)
    assert has_diverged([*losses, *[8.0] * 8], start=-0.01)
    assert forecast_loss([*losses, 0.2] * 3, 100, start=-0.01).status in ("no_progress", "too_short")


@pytest.mark.parametrize("num_points", [1, 8, 100])
def test_what_is_not_known_grows_with_the_horizon(num_points):
    losses = np.linspace(2.0, 1.5, num_points).tolist()

    near, far = (forecast_loss(losses, ratio * num_points, start=1.0).std for ratio in (3, 30))

    assert 0 < near < far


def test_a_long_curve_is_forecast_as_its_averages_are():
    losses, _, _ = synthetic("exponential_slow", 0)
    long = np.repeat(losses, 250)

    forecast = forecast_loss(long, 10 * len(long), start=2.2)

    assert forecast.mean == pytest.approx(forecast_loss(losses, 2400, start=2.2).mean, rel=0.1)


@pytest.mark.parametrize("shape", ["exponential_fast", "power_half", "spikes", "correlated_noise", "large_scale"])
def test_extrapolation_beats_the_last_losses_on_falling_curves(shape):
    losses, horizon, truth = synthetic(shape, 0)

    curve_error = abs(forecast_loss(losses, horizon, weight=1.0).mean - truth)

    assert curve_error < abs(np.median(losses[-48:]) - truth)


@given(
    losses=st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=60),
    ratio=st.floats(1, 1e6),
    level=st.none() | st.floats(allow_nan=True, allow_infinity=True),
)
@settings(max_examples=150)
def test_any_series_gives_a_finite_forecast(losses, ratio, level):
    forecast = forecast_loss(losses, len(losses) * ratio, start=level)

    assert math.isfinite(forecast.mean)
    assert math.isfinite(forecast.std) and forecast.std >= 0


@pytest.mark.parametrize("num_points", [1, 2, 3])
def test_a_handful_of_losses_is_too_short(num_points):
    assert forecast_loss([2.0, 1.5, 1.4][:num_points], 100).status == "too_short"


@pytest.mark.parametrize("num_points", [8, 16])
def test_a_short_falling_series_is_forecast_to_fall(num_points):
    losses = [2.0 * 0.9**index for index in range(num_points)]

    forecast = forecast_loss(losses, 10 * num_points, start=2.0)

    assert forecast.status == "ok"
    assert 0 <= forecast.mean < losses[-1] + 0.1


@pytest.mark.parametrize(
    ("losses", "status"),
    [
        ([1.0] * 20 + [math.nan], "diverged"),
        ([1.0] * 20 + [math.inf], "diverged"),
        ([1.0 + 0.5 * step for step in range(40)], "diverged"),
        ([1.0] * 40, "no_progress"),
        ([1e30] * 40, "diverged"),
        ([1.8] * 10 + [1.8 - 0.03 * step for step in range(40)], "overshoot"),
        ([1.0 - 0.01 * step for step in range(40)], "ok"),
    ],
)
def test_the_status_names_what_the_curve_did(losses, status):
    assert forecast_loss(losses, 400, start=1.0).status == status


def test_an_overshoot_gets_no_credit_for_falling_back():
    losses = [1.8] * 10 + [1.8 - 0.03 * step for step in range(40)]

    assert forecast_loss(losses, 4000, start=1.0, weight=1.0).mean == pytest.approx(np.median(losses[-10:]))


@pytest.mark.parametrize("scale", [1e-6, 1e30])
def test_the_forecast_scales_with_the_loss(scale):
    losses, horizon, _ = synthetic("exponential_slow", 1)

    plain = forecast_loss(losses, horizon, start=2.2)
    scaled = forecast_loss([scale * loss for loss in losses], horizon, start=2.2 * scale)

    assert scaled.mean == pytest.approx(scale * plain.mean, rel=1e-6)
    assert scaled.std == pytest.approx(scale * plain.std, rel=1e-6)


def test_positive_losses_never_get_a_negative_forecast():
    losses = np.linspace(2.0, 0.1, 100).tolist()

    assert forecast_loss(losses, 100_000, start=2.0, weight=1.0).mean >= 0


def test_batch_noise_at_a_small_loss_is_not_a_divergence():
    rng = np.random.default_rng(0)
    losses = np.exp(rng.normal(math.log(0.03), 1.0, 60)).tolist()

    assert not has_diverged(losses, start=0.01, tolerance=0.7 * 2.3)


@pytest.mark.parametrize(
    ("losses", "horizon", "argument"), [([], 10, "losses"), ([1.0] * 8, 7, "horizon"), ([1.0] * 8, math.inf, "horizon")]
)
def test_an_impossible_question_names_its_argument(losses, horizon, argument):
    with pytest.raises(ValueError, match=f"`{argument}`"):
        forecast_loss(losses, horizon)


@pytest.mark.parametrize("weight", [-0.1, 1.1, math.nan, math.inf])
def test_an_impossible_weight_names_its_value_and_the_range(weight):
    with pytest.raises(ValueError, match=rf"`weight` must be in \[0, 1\], got {weight}"):
        forecast_loss([1.0] * 8, 80, weight=weight)


def test_a_forecast_takes_less_than_15_milliseconds_of_processor_time():
    losses, horizon, _ = synthetic("exponential_slow", 0)
    forecast_loss(losses, horizon)

    started = time.process_time()
    for _ in range(20):
        forecast_loss(losses, horizon, start=2.2)

    assert (time.process_time() - started) / 20 < 0.015


def test_a_sample_that_is_far_off_in_a_probes_first_steps_is_no_divergence():
    assert not has_diverged([6.54], start=0.28)
    assert not has_diverged([6.54, 0.0002], start=0.28)
    assert has_diverged([0.3, 6.54], start=0.28)
    assert has_diverged([6.54, float("nan")], start=0.28)
