"""The pure parts of benchmarks/links.py."""

import math

import pytest
import torch
from races import links_table
from races.network import Sent, token_bucket
from races.race import Validation, crossing
from races.rates import SEEDS, Tried, best_rate, next_rate
from races.rivals import smallest
from races.tasks import NextBytes, Shards
from torch.utils.data import TensorDataset

GRID = (1.0, 2.0, 4.0, 8.0)


def looks(*losses: float) -> list[Validation]:
    """Return validations every 10 steps, which took 2 s each."""
    return [Validation(10 * place, 2.0 * place, own=loss, mean=loss + 1) for place, loss in enumerate(losses, start=1)]


def test_a_loss_is_reached_on_the_line_between_two_looks() -> None:
    assert crossing(looks(3.0, 1.0), 1.5) == pytest.approx((17.5, 3.5))


def test_a_loss_that_no_look_sees_is_not_reached() -> None:
    assert crossing(looks(3.0, 2.0, 2.5), 1.5) is None


def test_a_race_without_a_target_reaches_nothing() -> None:
    assert crossing(looks(3.0, 1.0), None) is None


def test_the_first_crossing_counts_even_if_the_loss_rises_again() -> None:
    assert crossing(looks(3.0, 1.0, 3.0), 2.0) == pytest.approx((15, 3.0))


def test_a_model_that_has_diverged_has_reached_nothing() -> None:
    assert crossing(looks(math.nan, math.nan), 2.0) is None


def chosen(steps: dict[float, tuple[float, ...]], *, start: float) -> tuple[float, Tried]:
    """Return the rate that is chosen, and what was tried, where rates need so many steps with the three seeds."""
    tried: Tried = {}
    for place, seed in enumerate(SEEDS):
        while (rate := next_rate(tried, seed, start=start, grid=GRID)) is not None:
            tried.setdefault(rate, {})[seed] = (steps[rate][place], 0.0)
    return best_rate(tried), tried


def test_the_walk_on_the_grid_ends_at_a_rate_better_than_both_neighbours() -> None:
    best, tried = chosen({1.0: (190.0,), 2.0: (170.0,), 4.0: (50.0,), 8.0: (160.0,)}, start=2.0)

    assert best == 4.0
    assert 1.0 not in tried


def test_the_walk_goes_to_the_end_of_the_grid_and_no_further() -> None:
    assert chosen({1.0: (1.0,), 2.0: (2.0,), 4.0: (4.0,), 8.0: (8.0,)}, start=4.0)[0] == 1.0


def test_rates_that_came_close_meet_again_with_two_more_seeds() -> None:
    best, tried = chosen({1.0: (200.0,), 2.0: (75.2, 79.0, 67.0), 4.0: (74.8, 70.0, 113.0), 8.0: (134.0,)}, start=2.0)

    assert best == 2.0
    assert {rate: len(merits) for rate, merits in tried.items()} == {2.0: 3, 4.0: 3, 8.0: 1}


def test_a_rate_that_misses_the_loss_with_a_seed_is_worse_than_one_that_never_does() -> None:
    assert chosen({1.0: (99.0,) * 3, 2.0: (76.0, 76.0, math.inf), 4.0: (math.inf,)}, start=2.0)[0] == 1.0


def test_of_rates_that_reach_nothing_the_lowest_loss_is_best() -> None:
    assert best_rate({1.0: {SEEDS[0]: (math.inf, 2.0)}, 2.0: {SEEDS[0]: (math.inf, 1.0)}}) == 2.0


@pytest.mark.parametrize(("n", "low", "high"), [(1, 0, 0), (5, 0, 4), (9, 1, 7), (20, 5, 14)])
def test_the_interval_of_a_median_is_the_sign_tests(n: int, low: int, high: int) -> None:
    """Order statistics of a 95 % interval, as in published tables of the sign test; all values below n = 6."""
    assert links_table.median_interval([float(each) for each in range(n)]) == (low, (n - 1) / 2, high)


def test_closeness_is_0_at_the_limit_and_1_at_the_rival() -> None:
    rows = [
        {"race": 1, "arm": arm, "steps": 10.0, "seconds": seconds, "block_seconds": [1.0], "block_steps": 1}
        for arm, seconds in {"nosync": None, "plain": 90.0, "torch-powersgd-4": 30.0, "ours": 15.0}.items()
    ]

    assert links_table.limit(rows, rows[0]) == 10.0
    assert [links_table.closeness(row, rows) for row in rows] == [None, 4.0, 1.0, 0.25]


@pytest.mark.parametrize(("first_s", "seconds"), [(5.0, 13.0), (1.0, 9.0)])
def test_without_its_start_up_a_run_takes_as_long_as_if_its_first_block_were_like_the_others(
    first_s: float, seconds: float
) -> None:
    row = {"seconds": seconds, "block_seconds": [first_s, 1.0, 0.9, 1.1, 1.0]}

    assert links_table.without_start_up(row) == pytest.approx(9.0)


def test_a_run_that_never_got_there_has_no_time_without_its_start_up_either() -> None:
    assert links_table.without_start_up({"seconds": None, "block_seconds": [5.0, 1.0]}) is None


def test_a_run_that_never_got_there_counts_as_endless() -> None:
    assert links_table.told([3.0, None, 1.0]) == "3.0 [1.0, inf]"
    assert links_table.told([3.0, None, None]) == "-"


def test_the_share_as_planned_allows_a_factor_of_two() -> None:
    assert links_table.share_as_planned([0.005, 0.02, 0.0049, 0.0201], 0.01) == 0.5


def test_a_payload_is_what_the_headers_leave() -> None:
    assert (Sent(bytes=10_000, packets=20) - Sent(bytes=1_000, packets=10)).payload == 9_000 - 660


def test_a_limit_saves_up_a_millisecond_and_lets_a_frame_through() -> None:
    assert "12500b" in token_bucket(100)
    assert "3028b" in token_bucket(1)


def test_small_tensors_are_chosen_from_the_smallest_up() -> None:
    tensors = [torch.zeros(size) for size in (970, 10, 15, 5)]

    assert [len(tensor) for tensor in smallest(tensors, 0.02)] == [5, 10]


def test_hosts_have_no_label_in_common() -> None:
    labels = torch.arange(10).repeat(6)
    shards = Shards(TensorDataset(labels), torch.argsort(labels, stable=True), batch_size=64)

    seen = [set(next(shards.batches(seed=0, start_step=0, rank=rank, num_workers=2))[0].tolist()) for rank in range(2)]

    assert seen == [{0, 1, 2, 3, 4}, {5, 6, 7, 8, 9}]


def test_batches_follow_from_seed_and_step_alone() -> None:
    shards = Shards(TensorDataset(torch.arange(100)), torch.arange(100), batch_size=8)
    stream = shards.batches(seed=1, start_step=0, rank=1, num_workers=2)
    next(stream)

    (again,) = next(shards.batches(seed=1, start_step=1, rank=1, num_workers=2))

    assert torch.equal(next(stream)[0], again)


def test_each_byte_is_learnt_on_one_host() -> None:
    text = torch.arange(256, dtype=torch.uint8).repeat(3).reshape(1, -1)  # one window, so all hosts draw it

    weights = [next(NextBytes(text, 1).batches(seed=0, start_step=0, rank=rank, num_workers=4))[1] for rank in range(4)]

    assert torch.equal(torch.stack(weights).mean(dim=0), torch.ones(1, 767))
    assert all(set(own.unique().tolist()) == {0.0, 4.0} for own in weights)
