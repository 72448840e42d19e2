"""The surrogate and its acquisition find the valley of a 2-d surface with a cliff in few evaluations."""

import time
from functools import partial

import numpy as np
import pytest
import torch

from search.surrogate import acquisition
from search.surrogate.acquisition import sobol_points
from search.surrogate.model import Surrogate, quiet_and_single_threaded

UNIT_SQUARE = np.array([[0.0, 0.0], [1.0, 1.0]])
NOTHING = np.zeros((0, 2))
NOISE = 0.02


next_point = partial(acquisition.next_point, snap=np.asarray, is_legal=lambda point: True)


def _reward(points):
    """A tilted valley with its best reward, 0, inside, and a cliff at high rates. points: (m, 2)."""
    valley = 0.55 + 0.15 * (points[:, 1] - 0.5)
    reward = -6 * (points[:, 0] - valley) ** 2 - 0.3 * (points[:, 1] - 0.6) ** 2
    return np.where(points[:, 0] > 0.8, -2.0, reward)


def _search(seed, num_evaluations=10):
    rng = np.random.default_rng(seed)
    points = sobol_points(4, UNIT_SQUARE, seed=seed)
    rewards = _reward(points) + rng.normal(0, NOISE, 4)
    while len(points) < num_evaluations:
        surrogate = Surrogate(points, rewards, np.full(len(points), NOISE**2))
        point = next_point(surrogate, UNIT_SQUARE, pending=NOTHING, seed=100 * seed + len(points))
        points = np.vstack([points, point])
        rewards = np.append(rewards, _reward(point[None]) + rng.normal(0, NOISE))
    return points, rewards


@pytest.fixture(scope="module")
def data():
    return _search(0)


@pytest.fixture(scope="module")
def surrogate(data):
    points, rewards = data
    return Surrogate(points, rewards, np.full(len(points), NOISE**2))


def test_ten_evaluations_come_within_2_percent_of_the_best_reward():
    regrets = [-_reward(_search(seed)[0]).max() for seed in range(6)]

    assert np.median(regrets) <= 0.02


def test_an_ask_takes_a_fraction_of_a_second_of_processor_time(data):
    points, rewards = data
    taken = []
    for seed in range(5):
        started = time.process_time()
        fitted = Surrogate(points, rewards, np.full(len(points), NOISE**2))
        next_point(fitted, UNIT_SQUARE, pending=NOTHING, seed=seed)
        taken.append(time.process_time() - started)

    # the goal is 0.1, which benchmarks/controller.py measures; machines are slow some hours
    assert np.median(taken) < 0.6


def test_the_same_data_and_seed_give_the_same_bits(data):
    points, rewards = data
    asked = [
        next_point(Surrogate(points, rewards, np.full(10, NOISE**2)), UNIT_SQUARE, pending=NOTHING, seed=3)
        for _ in range(2)
    ]

    assert asked[0].tobytes() == asked[1].tobytes()


def test_a_pending_point_sends_the_next_one_elsewhere(surrogate):
    first = next_point(surrogate, UNIT_SQUARE, pending=NOTHING, seed=1)

    second = next_point(surrogate, UNIT_SQUARE, pending=first[None], seed=1)

    assert np.linalg.norm(first - second) > 0.01


def test_points_stay_within_the_bounds(surrogate):
    bounds = np.array([[0.7, 0.1], [0.9, 0.2]])

    point = next_point(surrogate, bounds, pending=NOTHING, seed=0)

    assert (bounds[0] <= point).all() and (point <= bounds[1]).all()


def test_nothing_legal_is_no_point(surrogate):
    assert next_point(surrogate, UNIT_SQUARE, pending=NOTHING, is_legal=lambda point: False, seed=0) is None


def test_the_posterior_passes_near_the_data(data, surrogate):
    points, rewards = data

    mean, covariance = surrogate.joint(points)

    assert np.abs(mean - rewards).max() < 5 * NOISE
    assert (np.diag(covariance) < np.var(rewards)).all()


def test_a_constant_reward_is_no_error():
    flat = Surrogate(sobol_points(5, UNIT_SQUARE, seed=0), np.ones(5), np.zeros(5))

    assert flat.mean(np.array([[0.5, 0.5]])) == pytest.approx(1.0)


def test_threads_and_random_state_are_left_as_they_were(data):
    points, rewards = data
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()

    fitted = Surrogate(points, rewards, np.zeros(len(points)))
    next_point(fitted, UNIT_SQUARE, pending=NOTHING, seed=0)

    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), state)


def test_threads_are_restored_after_an_error():
    threads = torch.get_num_threads()
    with pytest.raises(KeyError), quiet_and_single_threaded():
        raise KeyError

    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("rewards", [[1.0, 2.0], [1.0, 2.0, 3.0, np.nan]])
def test_too_little_or_unusable_data_are_refused(rewards):
    with pytest.raises(ValueError, match="`rewards`"):
        Surrogate(np.zeros((len(rewards), 2)), np.array(rewards), np.zeros(len(rewards)))
