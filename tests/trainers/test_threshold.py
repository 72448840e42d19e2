import pytest

from trainers.config import ThresholdConfig
from trainers.exchange.compressors.threshold import LEAST_THRESHOLD, HardThreshold
from trainers.exchange.config import ExchangeBase, PowerSgdConfig, TopKConfig

D = 10_000


def calibrated(level: float, *, measured: float, hold: str = "stage", threshold: float = 0.5) -> HardThreshold:
    compressor = HardThreshold(ThresholdConfig(density=level, hold=hold), [D])
    compressor.calibrate(level, threshold)
    compressor.observe(most_wanted=[measured * D], mean_wanted=measured * D)
    return compressor


def test_a_new_level_needs_calibration():
    assert HardThreshold(ThresholdConfig(density=0.01), [D]).needs_calibration(0.01)
    assert calibrated(0.01, measured=0.01).needs_calibration(0.02)


@pytest.mark.parametrize(("measured", "expected"), [(0.004, True), (0.006, False), (0.019, False), (0.021, True)])
def test_a_drift_beyond_twice_the_plan_needs_calibration(measured: float, expected: bool):
    assert calibrated(0.01, measured=measured).needs_calibration(0.01) is expected


@pytest.mark.parametrize("measured", [0.0001, 0.5])
def test_a_threshold_held_for_the_run_is_not_found_anew(measured: float):
    assert not calibrated(0.01, measured=measured, hold="run").needs_calibration(0.01)


def test_the_least_threshold_is_not_found_anew_for_being_sparser_than_planned():
    assert not calibrated(0.5, measured=0.1, threshold=LEAST_THRESHOLD).needs_calibration(0.5)


def test_capacity_follows_the_fullest_rank():
    compressor = calibrated(0.01, measured=0.01)

    compressor.observe(most_wanted=[801], mean_wanted=300)

    assert compressor.state.capacities == (1008,)  # 1.25 x 801 = 1001.25, in multiples of 8
    assert compressor.state.wanted == 0.03


@pytest.mark.parametrize(
    ("search", "level", "allowed"),
    [
        ("density", 0.0, r"in \(0, 1\]"),
        ("density", 1.1, r"in \(0, 1\]"),
        ("absolute", -1.0, ">= 0"),
    ],
)
def test_a_level_outside_its_range_is_named(search: str, level: float, allowed: str):
    knob = "density" if search == "density" else "threshold"
    config = ThresholdConfig(search=search, **{knob: 0.1})

    with pytest.raises(ValueError, match=f"`level` must be {allowed}.*got {level:g}"):
        config.check_level(level)


@pytest.mark.parametrize(
    ("config", "level", "allowed"),
    [
        (TopKConfig(density=0.1), float("nan"), r"in \(0, 1\]"),
        (ThresholdConfig(search="absolute", threshold=1.0), float("nan"), ">= 0"),
        (PowerSgdConfig(), 0.0, "at least 1"),
    ],
)
def test_a_level_of_any_kind_is_checked(config: ExchangeBase, level: float, allowed: str):
    with pytest.raises(ValueError, match=f"`level` must be {allowed}.*got {level:g}"):
        config.check_level(level)


def test_a_searched_level_must_be_given():
    with pytest.raises(ValueError, match="`level` must be given"):
        ThresholdConfig(density=(0.01, 0.1)).check_level(None)
