"""Losses of any unit that pass zero, such as a correlation or a mean return, are judged by what is seen of them."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from search.bayesian.controller import Controller
from search.config import BoConfig, Budget
from search.curves.faults import Known, LossLevel, fault
from search.curves.forecast import forecast_loss, has_diverged, size_of
from search.space import SearchSpace
from search.trace import Trace
from search.types import Observation, Spent, Values

BUDGET = Budget(steps=4000)
UNITS = [1e-3, 1.0, 1e3]


def _controller(optimizer="sgd", *, budget=BUDGET, **config):
    space = SearchSpace(optimizer=optimizer, guess=Values(learning_rate=0.1))
    return Controller(space, BoConfig(**config), 0, budget=budget)


def _small(num_steps, *, noise=0.0, seed=0):
    """Losses that fall from 0.001 to -0.02, where they stay."""
    course = -0.02 + 0.021 * np.exp(-np.arange(num_steps) / 30)
    return course + np.random.default_rng(seed).normal(0, noise, num_steps)


def _told(losses):
    ones = [1.0] * len(losses)
    trace = Trace().extended(list(losses), ones, ones)
    spent, last = Spent(steps=len(losses)), tuple(losses[-200:])
    return Observation(candidate_id=None, losses=last, step_seconds=(), trace=trace, bytes_sent=0, spent=spent)


# -- the size of a loss --------------------------------------------------------------------------------


@given(first=st.floats(1e-6, 1e6), seen=st.lists(st.floats(0, 1e6), max_size=20))
def test_the_size_of_a_loss_that_stays_positive_is_the_one_that_it_began_with(first, seen):
    assert size_of(first, seen) == first


@given(
    first=st.floats(-100, 100),
    seen=st.lists(st.floats(-100, 100), max_size=20),
    power=st.integers(-20, 20),
)
def test_the_size_of_a_loss_is_in_its_unit(first, seen, power):
    unit = 2.0**power

    assert size_of(unit * first, [unit * loss for loss in seen]) == pytest.approx(unit * size_of(first, seen))


def test_the_size_of_a_loss_that_passes_zero_is_how_far_it_fell_or_ten_times_its_noise():
    noisy = np.random.default_rng(0).normal(0, 0.05, 500)

    assert size_of(0.001, [0.0, -0.01, -0.02, -0.02, -0.02, -0.02, -0.02]) == pytest.approx(0.021)
    assert size_of(0.001, noisy) == pytest.approx(0.5, rel=0.2)
    wild = 100 * np.abs(noisy)  # a rate that is too high adds noise
    assert size_of(0.001, noisy, wild) == pytest.approx(0.5, rel=0.2)
    assert size_of(0.001, [0.0005], lowest=-0.02) == pytest.approx(0.021)
    assert size_of(-3.0, [-3.0, -3.1]) == 3.0


def test_one_loss_far_below_the_others_is_not_the_size():
    assert size_of(2.3, [2.2, 2.1, -1e6, 2.0, 1.9, 1.8, 1.7, 1.6]) == 2.3


# -- curves --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    ("losses", "status"),
    [
        (_small(60, noise=0.002), "ok"),
        (0.001 + 0.01 * np.sin(np.arange(60)), "no_progress"),
        (np.r_[0.03 * np.exp(-np.arange(20) / 5), _small(40, noise=0.002)], "overshoot"),
        (np.r_[_small(40, noise=0.002), np.geomspace(0.2, 5.0, 20)], "diverged"),
    ],
    ids=["falls", "stays", "overshoots", "diverges"],
)
def test_a_curve_about_zero_is_told_alike_in_every_unit(losses, status, unit):
    assert forecast_loss(unit * losses, 600, start=unit * 0.001).status == status
    assert has_diverged((unit * losses).tolist(), start=unit * 0.001) is (status == "diverged")


@pytest.mark.parametrize("unit", UNITS)
def test_a_line_about_zero_that_loses_what_it_gained_has_worsened(unit):
    rises = np.r_[_small(60, noise=0.001), np.full(60, 0.0) + _small(60, noise=0.001, seed=1) + 0.02]
    known = Known(start=unit * 0.001, initial=unit * 0.001, best=LossLevel(-0.02 * unit, 0.0), gradient_scale=1.0)

    assert fault(unit * rises, np.ones(120), known, is_over=True).has_worsened
    assert not fault(unit * _small(120, noise=0.001), np.ones(120), known, is_over=True).has_worsened


# -- runs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("noise", [0.0, 0.002, 0.02])
def test_a_commit_that_falls_below_zero_and_flattens_there_has_learned(noise, unit):
    controller = _controller(max_search_fraction=0.001)
    assert controller.ask() is None
    rate, losses = controller.decide().values.learning_rate, unit * _small(500, noise=noise)

    assert all(controller.watch(_told(losses[:num_steps])) == "go_on" for num_steps in range(100, 501, 50))
    controller.tell(_told(losses))
    assert controller.ask() is None
    assert "nothing" not in controller.decide().reason.split("nothing happened")[0]
    assert controller.decide().values.learning_rate == rate


@pytest.mark.parametrize("unit", UNITS)
def test_a_commit_that_stays_where_it_began_has_learned_nothing(unit):
    controller = _controller(max_search_fraction=0.001)
    assert controller.ask() is None
    controller.decide()

    assert controller.watch(_told(unit * (0.001 + 0.0 * _small(500)))) == "roll_back"
    assert controller.watch(_told(unit * (-0.001 + 0.0 * _small(500)))) == "roll_back"


def _in_unit(run, unit):
    """Have `run` tell losses that fall from 0.001 to -0.02, times `unit`."""
    steps = run.steps

    def told(values, **limits):
        losses, diverged = steps(values, **limits)
        return [unit * (0.001 + 0.0105 * (loss - 2.3)) for loss in losses], diverged

    run.steps = told
    return run


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "schedulefree_sgd"])
@pytest.mark.parametrize("revisit", ["events", "stages"])
def test_a_loss_a_thousand_times_as_large_changes_no_decision(simulated_run, revisit, optimizer):
    budget = Budget(steps=1500)
    small, large = (
        _in_unit(simulated_run(budget), unit).train(_controller(optimizer, budget=budget, revisit=revisit))
        for unit in (1.0, 1e3)
    )

    assert len(small.decisions) == len(large.decisions) > 1
    for decision, other in zip(small.decisions, large.decisions, strict=True):
        assert math.isclose(decision.values.learning_rate, other.values.learning_rate, rel_tol=1e-3)
        assert (decision.switched, len(decision.probes)) == (other.switched, len(other.probes))
        assert [each.forecast.status for each in decision.probes] == [each.forecast.status for each in other.probes]
    assert [each.rolled_back for each in small.commits] == [each.rolled_back for each in large.commits]


def test_a_rate_that_overshoots_at_first_is_no_divergence_beside_the_noise_of_other_rates():
    quiet = [0.065, 0.004, 0.013, 0.009, 0.062, -0.059, -0.073]

    assert not has_diverged([0.065, 0.2], start=0.04, beside=[quiet])
    assert has_diverged([0.065, 3e4], start=0.04, beside=[quiet])
    assert not has_diverged([0.065, -0.01, 0.3], start=-0.04)  # too few losses to know the noise
