import math

import pytest

from search.peak import lower_edge, vertex


def parabola(rate: float, *, at: float) -> float:
    return 1.0 - math.log(rate / at) ** 2


@pytest.mark.parametrize("at", [0.02, 0.05, 0.09])
def test_the_vertex_of_a_parabola_is_found_exactly_whatever_the_order(at: float):
    rates = [0.1, 1.0, 0.03, 0.01]

    assert vertex(rates, [parabola(rate, at=at) for rate in rates]) == pytest.approx(at)


def test_the_vertex_lies_between_the_best_probes_neighbours():
    rates, rewards = [0.01, 0.1, 0.11, 1.0], [0.0, 0.5, 0.501, 0.49999]

    assert 0.1 <= vertex(rates, rewards) <= 1.0


@pytest.mark.parametrize("rewards", [[3.0, 2.0, 1.0], [1.0, 2.0, 3.0], [1.0, 1.0, 1.0]])
def test_a_best_probe_at_an_end_has_no_vertex(rewards: list[float]):
    assert vertex([0.01, 0.1, 1.0], rewards) is None


def test_the_lower_edge_is_where_the_given_share_of_the_gain_is_reached_whatever_lies_above_the_best_rate():
    rates, rewards = [1.0, 0.001, 0.01, 0.1], [0.49, 0.0, 0.4, 0.5]

    assert lower_edge(rates, rewards, 0.4) == pytest.approx(0.001 * math.sqrt(10))
    assert lower_edge(rates, rewards, 0.8) == pytest.approx(0.01)
    assert lower_edge([*rates, 10.0], [*rewards, -3.0], 0.4) == pytest.approx(0.001 * math.sqrt(10))


def test_the_lower_edge_of_noise_below_the_plateau_is_the_one_next_to_the_best_rate():
    assert 0.01 < lower_edge([0.001, 0.01, 0.1, 1.0], [0.45, 0.1, 0.5, 0.2], 0.7) < 0.1


@pytest.mark.parametrize("rewards", [[3.0, 2.0, 1.0], [1.0, 1.0, 1.0]])
def test_a_reward_that_never_rises_has_its_lower_edge_at_the_lowest_rate(rewards: list[float]):
    assert lower_edge([0.01, 0.1, 1.0], rewards, 0.7) == pytest.approx(0.01)
