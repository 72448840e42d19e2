"""Faults of a run: a line that worsens or is lost, and a dead network; a healthy run shows none."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from search.curves.faults import (
    SHORTEST_WINDOW,
    VANISHED,
    WINDOW,
    Fault,
    Known,
    LossLevel,
    Probed,
    fault,
    lower,
    reached,
)
from search.trace import Trace

INITIAL, POINTS = 2.4, 150
IGNORANCE = float(np.log(10))
BEST = LossLevel(0.5, 0.005)


def _noisy(course, *, share=0.05, seed=0):
    return np.asarray(course) * np.exp(np.random.default_rng(seed).normal(0, share, len(course)))


def _judge(losses, *, scales=None, start=0.5, best=BEST, is_over=False, **known):
    scales = np.ones(len(losses)) if scales is None else scales
    told = Known(start=start, initial=INITIAL, best=best, gradient_scale=1.0)._replace(**known)
    return fault(np.asarray(losses), scales, told, is_over=is_over)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_a_healthy_course_shows_no_fault_however_noisy(share, seed):
    falling = 0.4 + 2.0 * np.exp(-np.arange(POINTS) / 30)
    courses = [(falling, 2.4, None), (np.full(POINTS, 0.5), 0.5, BEST), (np.linspace(2.3, 1.9, POINTS), 2.4, None)]
    for course, start, best in courses:
        losses = _noisy(course, share=share, seed=seed)
        for num_points in range(2 * WINDOW, POINTS + 1, 10):
            found = _judge(losses[:num_points], start=start, best=best, is_over=num_points == POINTS)
            assert not found.has_worsened and not found.is_dead


def test_a_loss_that_blew_up_is_found_at_the_end_of_a_commit_too_short_for_windows():
    blown = INITIAL * np.array([1.0, 1.2, 0.9, 40.0, 25.0, 3e3, 1e7])

    found = _judge(blown, start=INITIAL, best=None, is_over=True)
    assert found.is_dead and found.is_lost
    assert _judge(blown, start=INITIAL, best=None) == Fault()  # it is given time
    for healthy in (blown[:5], INITIAL * np.array([1.0, 9.0, 8.0, 7.0]), -blown):
        assert _judge(healthy, start=INITIAL, best=None, is_over=True) == Fault()
    for num_points in range(5, 2 * WINDOW):
        found = _judge(INITIAL * np.geomspace(1.0, 1e6, num_points), start=INITIAL, best=None, is_over=True)
        assert found.is_dead and found.is_lost


@pytest.mark.parametrize("num_points", [12, 24, 100])
@pytest.mark.parametrize("start", [2.0, -2.0])
def test_the_noise_of_a_loss_that_blew_up_does_not_excuse_it(start, num_points):
    shocks = np.random.default_rng(0).lognormal(4, 0.5, num_points)

    assert _judge(start + abs(start) * shocks, start=start, initial=start, best=None, is_over=True).is_dead


@pytest.mark.parametrize("num_points", [2 * WINDOW, 100, 200])
def test_a_loss_that_blew_up_in_its_last_points_is_found_however_long_the_commit(num_points):
    last = 9 if num_points > 2 * WINDOW else 5
    blown = np.r_[np.full(num_points - last, 1.0), np.geomspace(30, 500, last)]

    found = _judge(blown, start=1.0, best=None, is_over=True)
    assert found.is_dead and found.has_risen and found.is_lost
    assert not _judge(blown, start=1.0, best=None).is_dead  # it is given time
    spiked = np.r_[np.full(num_points - 2, 1.0), [30.0, 500.0]]
    assert not _judge(spiked, start=1.0, best=None, is_over=True).is_dead


def test_a_loss_that_fell_by_orders_of_magnitude_is_worse_where_it_rises_by_some_of_them():
    fallen = _noisy([*np.geomspace(10, 1e-3, 50), *[1e-3] * 25, *[0.4] * 75])
    known = {"start": 10.0, "best": None, "initial": 10.0}

    assert _judge(fallen, **known).has_worsened and not _judge(fallen, **known).is_lost
    assert _judge(_noisy([*[1e-3] * 75, *[0.4] * 75]), **known | {"start": 1e-3}).is_lost
    assert not _judge(fallen - 1.2e-3, **known).has_worsened  # a loss below zero has no orders of magnitude
    little = _noisy([*np.geomspace(10, 1e-4, 50), *[1e-4] * 25, *[5e-3] * 75])  # beside where it began
    few = _noisy([*np.geomspace(10, 0.02, 50), *[0.02] * 25, *[0.4] * 75])
    assert not _judge(little, **known).has_worsened and not _judge(few, **known).has_worsened


def test_a_net_that_died_in_a_commit_is_told_from_one_that_was_dead_where_it_began():
    ignorant = _noisy(np.full(POINTS, INITIAL), share=0.005)
    learned_first = _noisy([*np.linspace(INITIAL, 0.5, 50), *[INITIAL] * 100], share=0.005)
    for losses, start, has_risen in ((ignorant, INITIAL, False), (ignorant, 0.5, True), (learned_first, INITIAL, True)):
        found = _judge(losses, start=start, best=LossLevel(0.4, 0.005))
        assert found.is_dead and found.has_risen is has_risen


def test_a_line_that_worsens_a_little_in_every_stage_is_found_though_no_stage_rises_far():
    best, found = LossLevel(1.53, 0.005), []
    for start, end in ((1.53, 1.60), (1.60, 1.66), (1.66, 1.72)):
        losses = _noisy(np.linspace(start, end, POINTS).clip(max=end), share=0.005)
        found.append(_judge(losses, start=start, best=best).has_worsened)
        best = lower(best, reached(losses))

    assert not found[0] and found[-1] and best.loss == pytest.approx(1.53, rel=0.01)


def test_a_loss_that_jumped_and_stays_flat_is_worse_and_lost():
    found = _judge(_noisy(np.where(np.arange(POINTS) < 30, 0.5, 1.0)))

    assert found.has_worsened and found.is_lost and found.best == pytest.approx(0.5, rel=0.02)


def test_where_a_long_run_started_is_told_by_its_first_losses_and_not_by_their_means():
    fell_fast = [0.05 + 0.64 * math.exp(-step / 4) for step in range(4000)]
    trace = Trace()
    for start in range(0, 4000, 7):
        trace = trace.extended(fell_fast[start : start + 7], (), ())
    unknown = Known(start=None, initial=None, best=None)
    losses = np.asarray(trace.losses)

    told = fault(losses, trace.gradient_scales, unknown, is_over=True, opening=trace.opening)

    assert trace.opening == tuple(fell_fast[:5])
    assert told.has_learned and not told.is_ignorant
    assert not fault(losses, trace.gradient_scales, unknown, is_over=True).has_learned  # by the means


def test_a_loss_that_comes_back_is_given_time_until_the_commit_is_over():
    losses = _noisy(np.linspace(1.6, 0.9, POINTS), share=0.01)

    assert not _judge(losses).has_worsened
    assert _judge(losses, is_over=True).has_worsened


def test_a_line_that_recovers_from_an_earlier_loss_is_not_blamed_for_it():
    assert not _judge(_noisy(np.linspace(1.6, 0.9, POINTS), share=0.01), start=1.6, is_over=True).has_worsened


def test_a_commit_that_keeps_most_of_what_it_gained_is_worse_and_not_lost():
    losses = _noisy([*np.linspace(2.3, 0.5, 50), *[0.5] * 50, *[0.9] * 50])
    kept, lost = _judge(losses, start=2.4, best=None), _judge(losses, start=1.0, best=None)

    assert kept.has_worsened and not kept.is_lost
    assert lost.has_worsened and lost.is_lost


@pytest.mark.parametrize("gradient", [0.0, 1e-9, 0.5])
def test_a_net_that_sits_at_ignorance_after_it_had_learned_is_dead(gradient):
    found = _judge(_noisy(np.full(POINTS, IGNORANCE), share=0.005), scales=np.full(POINTS, gradient))

    assert found.is_dead


def test_a_net_that_never_learned_is_dead_if_its_gradient_is_gone_or_probes_had_learned():
    losses = _noisy(np.full(POINTS, IGNORANCE), share=0.005)
    fresh = {"start": INITIAL, "best": None}

    assert not _judge(losses, **fresh).is_dead
    assert _judge(losses, scales=np.full(POINTS, VANISHED / 2), **fresh).is_dead
    assert _judge(losses, probed=Probed(1.5, 7), **fresh).is_dead


@pytest.mark.parametrize("seed", range(5))
def test_noise_shows_neither_that_nothing_was_learned_nor_that_something_was(seed):
    fresh = {"start": INITIAL, "best": None}
    sleeping, learning = np.full(2 * WINDOW, INITIAL), np.linspace(INITIAL, 0.85 * INITIAL, 2 * WINDOW)
    asleep, awake = (_judge(_noisy(course, share=0.005, seed=seed), **fresh) for course in (sleeping, learning))
    loud_asleep, loud_awake = (_judge(_noisy(course, share=0.4, seed=seed), **fresh) for course in (sleeping, learning))

    assert asleep.is_ignorant and not asleep.has_learned
    assert awake.has_learned and not awake.is_ignorant
    assert not loud_asleep.has_learned and not loud_awake.is_ignorant


@pytest.mark.parametrize("gradient", [0.0, 1e-9, 1e-4])
@pytest.mark.parametrize("loss", [1e-9, 1e-3, 0.5])
def test_a_net_that_has_converged_is_not_dead(loss, gradient):
    scales = np.geomspace(1.0, max(gradient, 1e-12), POINTS)

    assert not _judge(np.full(POINTS, loss), scales=scales, start=loss, best=LossLevel(loss, 0.0)).is_dead
    falling = loss + 2.0 * np.exp(-np.arange(POINTS) / 10)
    assert not _judge(falling, scales=scales, start=2.4, best=None).is_dead


@pytest.mark.parametrize("seed", range(5))
def test_a_short_commit_shows_a_dead_net_alone(seed):
    rising, falling = np.linspace(0.5, 9.0, 2 * WINDOW - 1), np.linspace(INITIAL, 2.0, 2 * SHORTEST_WINDOW)
    flat = _noisy(np.full(2 * SHORTEST_WINDOW, IGNORANCE), share=0.01, seed=seed)
    fresh = {"start": INITIAL, "best": None, "probed": Probed(1.9, 7)}

    assert not _judge(rising).has_worsened
    assert not _judge(_noisy(falling, share=0.01, seed=seed), **fresh).is_dead
    assert _judge(flat, **fresh).is_dead
    assert _judge(flat[1:], **fresh) == Fault()


def _perceptron_course(rate, *, has_bias=True, learns_first=0, num_steps=400):
    """Losses and gradient scales of a ReLU perceptron with ten classes: steepest descent, clipped to norm 1."""
    torch.manual_seed(0)
    inputs, labels = torch.rand(256, 16), torch.arange(256) % 10
    inputs[torch.arange(256), labels] += 2.0
    hidden = [nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()]
    net = nn.Sequential(*hidden, nn.Linear(32, 10, bias=has_bias))
    losses, scales = [], []
    for step in range(num_steps):
        batch = torch.randint(0, 256, (64,))
        loss = nn.functional.cross_entropy(net(inputs[batch]), labels[batch])
        slopes = torch.autograd.grad(loss, list(net.parameters()))
        norm = float(torch.cat([slope.flatten() for slope in slopes]).norm())
        factor = (0.3 if step < learns_first else rate) / max(1.0, norm)
        with torch.no_grad():
            for parameter, slope in zip(net.parameters(), slopes, strict=True):
                parameter -= factor * slope
        losses.append(loss.item())
        scales.append(norm)
    return losses, scales


@pytest.mark.parametrize("learns_first", [0, 150])
@pytest.mark.parametrize(("rate", "has_bias", "is_dead"), [(10, False, True), (10, True, True), (3, True, False)])
def test_a_real_perceptron_is_dead_where_a_high_rate_killed_it_and_nowhere_else(rate, has_bias, is_dead, learns_first):
    losses, scales = _perceptron_course(rate, has_bias=has_bias, learns_first=learns_first)
    learned = reached(losses[:learns_first])
    start = learned.loss if learned else losses[0]
    known = Known(start=start, initial=losses[0], best=learned, probed=Probed(0.1, 7), gradient_scale=scales[0])
    found = fault(np.array(losses[learns_first:]), scales[learns_first:], known, is_over=True)

    assert (losses[-1] > 2.0) is found.is_dead is is_dead
