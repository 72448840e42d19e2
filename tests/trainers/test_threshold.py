from typing import Any

import pytest
import torch

from trainers.methods.exchange.powersgd.spec import PowerSgdConfig
from trainers.methods.exchange.threshold.exchange import HardThreshold
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.methods.exchange.topk.spec import TopKConfig
from trainers.spec.exchange import ExchangeBase

D = 10_000


def calibrated(level: float, **knobs: Any) -> HardThreshold:
    """Return what has taken one step at `level`, in two buckets of which the first wanted three times as much."""
    compressor = HardThreshold(ThresholdConfig(density=level, **knobs), [D // 2, D // 2])
    compressor.calibrate(level, 0.5)
    wanted, sample = [1.5 * level * D, 0.5 * level * D], torch.linspace(0, 1, 1001)
    compressor.observe_density(wanted, density=level, reached=compressor.reached(sample))
    return compressor


def test_a_new_level_needs_calibration():
    assert HardThreshold(ThresholdConfig(density=0.01), [D]).needs_calibration(0.01)
    assert calibrated(0.01).needs_calibration(0.02)
    assert not calibrated(0.01).needs_calibration(0.01)


def test_a_density_that_holds_gives_each_bucket_its_share_of_the_plan():
    assert calibrated(0.01).state.capacities == (96, 32)  # 1.2 x 75 and 1.2 x 25, in multiples of 8


def test_a_new_level_keeps_the_shares_of_the_buckets():
    compressor = calibrated(0.01)

    compressor.calibrate(0.02, 0.3)

    assert compressor.current.capacities == (184, 64)


def test_a_threshold_that_holds_makes_room_for_what_the_fullest_rank_wanted():
    compressor = calibrated(0.01, hold="run")

    compressor.observe([801, 0])

    assert compressor.state.capacities == (968, 8)  # 1.2 x 801 = 961.2, in multiples of 8
    assert compressor.state.threshold == 0.5


def test_a_density_as_planned_is_what_lambda_is_for():
    assert calibrated(0.01).state.reached == pytest.approx(0.99, abs=0.001)


def test_less_than_planned_raises_the_aim_and_more_lowers_it():
    compressor = calibrated(0.01)
    aims = []

    for density in (0.005, 0.005, 0.02, 0.02, 0.02):
        compressor.observe_density([100, 100], density=density, reached=1.0)
        aims.append(compressor.state.aim)

    step = (1.6 + 0.5) / (1 + 1.6 * 0.5)
    assert aims == pytest.approx([step, step**2, step, 1.0, 1.0])


def test_a_step_that_is_not_finite_leaves_the_threshold_as_it_was():
    compressor = calibrated(0.01)
    before = compressor.scalars()

    compressor.follow()

    assert compressor.current.threshold == pytest.approx(0.99, abs=0.001) != before["threshold"]
    assert compressor.scalars() == before


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
        (PowerSgdConfig(), 0.0, r"in \[1, 4\]"),
    ],
)
def test_a_level_of_any_kind_is_checked(config: ExchangeBase, level: float, allowed: str):
    with pytest.raises(ValueError, match=f"`level` must be {allowed}.*got {level:g}"):
        config.check_level(level)


def test_a_searched_level_must_be_given():
    with pytest.raises(ValueError, match="`level` must be given"):
        ThresholdConfig(density=(0.01, 0.1)).check_level(None)
