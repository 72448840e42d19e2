import math

import numpy as np
import pytest

from search.bayesian.setup import SearchSetup
from search.bayesian.stage import Stage
from search.bayesian.wide_optimum import (
    PLATEAU,
    coarse_pick,
    lowest_peak,
    parabola_peak,
    plateau,
    shows_progress,
    shows_too_little,
    steady_scores,
    vertex,
)
from search.config import BoConfig, Budget
from search.curves.curve_summary import Reading
from search.optimizer_traits import OPTIMIZER_TRAITS
from search.space import SearchSpace, Weights
from search.types import Allowance, Candidate, Observation, Spent, Values

NUM_STEPS = 20
LATE = 5 * NUM_STEPS // 6
PROBLEM = SearchSetup(
    space=SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1)),
    config=BoConfig(),
    budget=Budget(steps=1000),
    seed=0,
)


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


def test_the_plateau_is_where_the_given_share_of_the_best_gain_is_reached_whatever_the_order():
    rates, gains = [1.0, 0.001, 0.1, 0.01], [0.0, 0.0, 1.0, 0.4]
    low, high = plateau(rates, gains)

    assert low == pytest.approx(0.01 * 10 ** ((PLATEAU - 0.4) / 0.6))
    assert high == pytest.approx(0.1 * 10 ** (1 - PLATEAU))
    assert plateau([*rates, 0.0001], [*gains, 0.0]) == pytest.approx((low, high))


def test_the_plateau_does_not_depend_on_what_the_batches_add_to_all_gains():
    rates, gains = [0.001, 0.01, 0.1, 1.0], [0.0, 0.3, 0.5, -1.0]

    assert plateau(rates, [gain + 0.2 for gain in gains]) == pytest.approx(plateau(rates, gains))


def test_a_rate_that_lost_more_than_was_gained_bounds_the_plateau_as_one_that_diverged():
    assert plateau([0.01, 0.1, 1.0], [0.0, 0.5, -9.0]) == plateau([0.01, 0.1, 1.0], [0.0, 0.5, None])


def test_a_rate_that_diverged_bounds_the_plateau_nearer_than_one_that_gained_a_little():
    gained = plateau([0.01, 0.1, 1.0], [0.0, 0.5, 0.2])
    diverged = plateau([0.01, 0.1, 1.0], [0.0, 0.5, None])

    assert 0.1 < diverged[1] < gained[1] < 1.0 and diverged[0] == gained[0]


@pytest.mark.parametrize(("gains", "edge"), [([0.0, 0.1, 0.5], 1), ([0.0, 0.5, 0.45], 1)])
def test_a_gain_that_never_falls_has_its_upper_edge_at_the_highest_rate(gains, edge):
    assert plateau([0.01, 0.1, 1.0], gains)[edge] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ([0.3, None, None], (0.01, 0.01)),  # what diverged is on no plateau
        ([0.3, 0.1, -2.0], (0.01, 0.01)),
        ([0.3, 0.299, None], (0.01, 0.1)),  # as good as the lowest
        ([None, 0.3, 0.2], (0.1, 0.1)),
    ],
)
def test_where_the_lowest_rate_is_the_best_the_plateau_holds_what_is_not_clearly_behind_it(gains, expected):
    assert plateau([0.01, 0.1, 1.0], gains) == pytest.approx(expected)


# -- probes of one rung ----------------------------------------------------------------------------


def stage_of(curves: dict[float, list[float]], *, rung: int = 1) -> Stage:
    """Return a wide search whose probes, given as losses by learning rate, are finished."""
    stage = Stage(index=0, incumbent=PROBLEM.opening, has_incumbent=False)
    for number, (rate, losses) in enumerate(curves.items()):
        candidate = Candidate(
            id=f"0-{number}",
            stage=0,
            values=Values(learning_rate=rate),
            allowance=Allowance(steps=NUM_STEPS),
            origin="finalist" if rung else "wide",
            rung=rung,
        )
        told = Observation(
            candidate_id=candidate.id,
            losses=tuple(losses),
            step_seconds=(),
            bytes_sent=0,
            diverged=len(losses) < NUM_STEPS,
            spent=Spent(),
        )
        stage.candidates.append(candidate)
        stage.readings[candidate.id] = Reading.of(told)
    return stage


def falling(end: float, *, noise: float = 0.0) -> list[float]:
    """Return losses that fall from 2 to `end`, with the same noise of the batches for all rates."""
    shocks = np.random.default_rng(0).normal(0, noise, NUM_STEPS)
    return (np.linspace(2.0, end, NUM_STEPS) + shocks).tolist()


def jumping(end: float) -> list[float]:
    """Return losses that jump in their last third and come back."""
    return [loss + 1.0 * (step == LATE) for step, loss in enumerate(falling(end))]


def test_a_neighbour_that_diverged_brackets_the_vertex_as_one_with_a_low_reward_does():
    best = parabola_peak(PROBLEM, stage_of({0.1: falling(1.5), 0.2: falling(1.3), 0.4: [2.0, math.nan]}))

    assert best is not None and 0.1 < best.learning_rate < 0.2  # away from what diverged
    assert parabola_peak(PROBLEM, stage_of({0.1: falling(1.5), 0.2: falling(1.3)})) is None


def test_a_finalist_that_jumps_brackets_the_vertex_and_is_not_chosen():
    curves = {0.1: falling(1.5), 0.2: falling(1.3), 0.4: jumping(1.1)}
    best = parabola_peak(PROBLEM, stage_of(curves))

    assert [score.reward is None for score in steady_scores(stage_of(curves))] == [False, False, True]
    assert best is not None and 0.1 < best.learning_rate < 0.2
    assert parabola_peak(PROBLEM, stage_of(curves | {0.4: falling(1.1)})) is None  # the best at an end


def test_a_jump_is_one_above_the_next_lower_rate_that_does_not_jump_on_the_same_batch():
    shared = jumping(1.5)
    on_the_same_batch = stage_of({0.4: jumping(1.1), 0.2: jumping(1.3), 0.1: shared})
    one_after_the_other = stage_of({0.4: jumping(1.1), 0.2: jumping(1.3), 0.1: falling(1.5)})

    assert all(score.reward is not None for score in steady_scores(on_the_same_batch))
    assert [score.reward is None for score in steady_scores(one_after_the_other)] == [True, True, False]


def test_a_rate_that_overshoots_at_first_and_then_trains_is_no_jump():
    early = [loss + 1.0 * (step == NUM_STEPS // 3) for step, loss in enumerate(falling(1.1))]

    assert all(score.reward is not None for score in steady_scores(stage_of({0.1: falling(1.3), 0.4: early})))


def test_short_probes_are_not_asked_to_be_steady():
    stage = stage_of({0.1: falling(1.5), 1.0: jumping(1.3)}, rung=0)

    assert all(score.reward is not None for score in steady_scores(stage))


@pytest.mark.parametrize(
    ("rewards", "index"),
    [
        ([0.1, 0.5, 0.2, 0.52, 0.0], 1),  # much the same: the lower rate's
        ([0.1, 0.5, 0.2, 0.8, 0.0], 3),  # clearly better
        ([0.1, 0.3, 0.5, 0.4, 0.1], 2),  # one alone
        ([0.5, 0.51, 0.52, 0.2], 2),  # a slope is no peak
        ([-0.5, -0.2, -0.4, -0.19, -0.6], 1),
    ],
)
def test_of_two_peaks_the_lower_rates_is_meant_unless_it_is_clearly_lower(rewards: list[float], index: int):
    assert lowest_peak(np.array(rewards)) == index


@pytest.mark.parametrize(
    ("curves", "is_seen"),
    [
        ({0.01: falling(2.0), 0.1: falling(1.9)}, True),
        ({0.01: falling(2.0, noise=0.1), 0.1: falling(1.9, noise=0.1)}, True),  # noise that both share hides nothing
        ({0.01: falling(2.0), 0.1: falling(2.0)}, False),
        ({0.01: falling(2.0), 0.1: falling(2.1)}, False),
        ({0.01: falling(2.0), 0.1: [2.0, math.nan]}, False),
        ({0.01: [2.0, math.nan], 0.1: [2.0, math.nan]}, False),
        ({0.01: falling(1.0), 0.1: falling(1.0)}, True),  # all rates train as well
    ],
)
def test_progress_is_seen_where_a_rate_trains_better_than_the_lowest_one(
    curves: dict[float, list[float]], is_seen: bool
):
    assert shows_progress(stage_of(curves, rung=0)) is is_seen


def test_a_rate_that_is_better_on_some_batches_and_worse_on_others_shows_no_progress():
    other = [loss + (0.02 if step % 2 else -0.02) for step, loss in enumerate(falling(2.0))]

    assert not shows_progress(stage_of({0.01: falling(2.0), 0.1: other}, rung=0))


@pytest.mark.parametrize(
    ("ends", "is_little"),
    [
        ((2.0, 1.99, 1.99, 2.1), True),  # nothing trains
        ((1.5, 1.5, 1.49, 2.1), True),  # these batches are easier: two rates a decade apart see it alike
        ((1.5, 1.5, 1.49, 2.8), True),  # the usual rate overshoots at first
        ((1.5, 1.5, 1.49, 4.0), False),  # it ruins what may have been trained before
        ((1.5, 1.6, 1.7, 2.1), False),  # the lowest trains, and others do worse
        ((1.5, 1.5, 1.4, 2.1), False),  # one of them trains
        ((1.5,), False),
    ],
)
def test_probes_show_too_little_where_rates_a_decade_apart_do_alike_and_the_usual_one_does_not_ruin(ends, is_little):
    weights = Weights(num_matrices=4, scale=0.05)  # the usual rate is 0.01
    space = SearchSpace(optimizer="adamw", guess=Values(learning_rate=1e-3), weights=weights)
    setup = SearchSetup(space=space, config=BoConfig(), budget=Budget(steps=300), seed=0)
    stage = stage_of({1e-5 * 10**number: falling(end) for number, end in enumerate(ends)}, rung=0)

    assert shows_too_little(setup, stage) is is_little


def picked(optimizer: str, num_alone: int, *, middle: float = 0.01) -> float:
    """Return the pick for a plateau about `middle`, found by workers that train alone; the usual rate is known."""
    given = SearchSpace(
        optimizer=optimizer,
        guess=Values(learning_rate=0.1),
        weights=Weights(num_matrices=4, scale=0.05),
        sharpness=3.0,
        first_loss=2.0,
        num_alone=num_alone,
    )
    setup = SearchSetup(given, BoConfig(first_search="always"), Budget(steps=300), seed=0)
    return coarse_pick(setup, stage_of({middle * 10**power: falling(1.5 + power**2) for power in (-1, 0, 1)}, rung=0))


@pytest.mark.parametrize("optimizer", ["muon", "schedulefree_plus"])
def test_a_usual_rate_for_any_batch_draws_the_pick_of_more_workers_no_further_than_to_itself(optimizer: str):
    traits = OPTIMIZER_TRAITS[optimizer]
    asked = 0.8 * traits.usual  # by a worker alone; eight ask for twice as much

    assert traits.usual < picked(optimizer, 8, middle=asked / traits.pick) < 2 * asked


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "schedulefree_sgd", "schedulefree_adamw"])
def test_where_the_model_tells_the_usual_rate_the_pick_grows_by_the_cube_root_of_the_workers(optimizer: str):
    assert picked(optimizer, 8) == pytest.approx(2 * picked(optimizer, 1))
