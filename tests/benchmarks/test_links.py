"""The pure parts of benchmarks/links.py."""

import math

import pytest
import torch
from contest import table
from contest.network import Sent, token_bucket
from contest.race import Validation, crossing
from contest.rates import best_rate, next_rate
from contest.rivals import smallest
from contest.tasks import NextBytes, Shards
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


def test_the_walk_on_the_grid_ends_at_a_rate_better_than_both_neighbours() -> None:
    steps = {1.0: 90.0, 2.0: 70.0, 4.0: 50.0, 8.0: 60.0}
    tried: dict[float, tuple[float, float]] = {}

    while (rate := next_rate(tried, start=2.0, grid=GRID)) is not None:
        tried[rate] = (steps[rate], 0.0)

    assert best_rate(tried) == 4.0
    assert 1.0 not in tried


def test_the_walk_goes_to_the_end_of_the_grid_and_no_further() -> None:
    tried: dict[float, tuple[float, float]] = {}

    while (rate := next_rate(tried, start=4.0, grid=GRID)) is not None:
        tried[rate] = (rate, 0.0)  # the lower, the sooner

    assert best_rate(tried) == 1.0


def test_of_rates_that_reach_nothing_the_lowest_loss_is_best() -> None:
    assert best_rate({1.0: (math.inf, 2.0), 2.0: (math.inf, 1.0)}) == 2.0


@pytest.mark.parametrize(("n", "low", "high"), [(1, 0, 0), (5, 0, 4), (9, 1, 7), (20, 5, 14)])
def test_the_interval_of_a_median_is_the_sign_tests(n: int, low: int, high: int) -> None:
    """Order statistics of a 95 % interval, as in published tables of the sign test; all values below n = 6."""
    assert table.median_interval([float(each) for each in range(n)]) == (low, (n - 1) / 2, high)


def test_closeness_is_0_at_the_limit_and_1_at_the_rival() -> None:
    rows = [
        {"race": 1, "arm": arm, "steps": 10.0, "seconds": seconds, "block_seconds": [1.0], "block_steps": 1}
        for arm, seconds in {"nosync": None, "plain": 90.0, "torch-powersgd-4": 30.0, "ours": 15.0}.items()
    ]

    assert table.limit(rows, rows[0]) == 10.0
    assert [table.closeness(row, rows) for row in rows] == [None, 4.0, 1.0, 0.25]


def test_a_run_that_never_got_there_counts_as_endless() -> None:
    assert table.told([3.0, None, 1.0]) == "3.0 [1.0, inf]"
    assert table.told([3.0, None, None]) == "-"


def test_the_share_as_planned_allows_a_factor_of_two() -> None:
    assert table.share_as_planned([0.005, 0.02, 0.0049, 0.0201], 0.01) == 0.5


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
