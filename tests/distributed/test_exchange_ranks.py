"""Laws of the exchange, on three and four ranks (three catch what powers of two hide)."""

from typing import Any

import numpy as np
import pytest

from trainers import cost
from trainers.config import ThresholdConfig

D = 2000
Reports = dict[str, list[dict[str, Any]]]


@pytest.fixture(params=["three_ranks", "four_ranks"])
def either(request: pytest.FixtureRequest) -> Reports:
    reports: Reports = request.getfixturevalue(request.param)
    return reports


@pytest.mark.parametrize("scenario", ["conservation", "overflow"])
def test_sent_and_residual_add_up_to_all_gradients(three_ranks: Reports, scenario: str):
    ranks = three_ranks[scenario]

    given = np.sum([rank["given"] for rank in ranks], axis=0)
    residual = np.sum([rank["residual"] for rank in ranks], axis=0)

    np.testing.assert_allclose(ranks[0]["received"] + residual, given, atol=1e-5 * np.abs(given).max())


@pytest.mark.parametrize("scenario", ["conservation", "overflow"])
def test_all_ranks_receive_equal_bits(three_ranks: Reports, scenario: str):
    assert len({rank["bits"] for rank in three_ranks[scenario]}) == 1


def test_a_full_payload_sends_what_fits_and_the_next_one_is_larger(three_ranks: Reports):
    report = three_ranks["overflow"][0]

    full = range(1, 12, 3)

    assert [report["sent"][step] for step in full] == pytest.approx([16.0] * len(full))
    assert all(report["capacities"][step] > 100 for step in full)


def test_a_dense_level_sends_everything_and_empties_the_residual(three_ranks: Reports):
    assert three_ranks["conservation"][0]["densities"][30:33] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("steps", "plan"), [(slice(5, 15), 0.02), (slice(20, 30), 0.1), (slice(38, 50), 0.05)])
def test_measured_density_stays_within_twice_the_plan(three_ranks: Reports, steps: slice, plan: float):
    measured = np.mean(three_ranks["conservation"][0]["densities"][steps])

    assert plan / 2 <= measured <= plan * 2


@pytest.mark.parametrize("limit", ["threshold 0", "density 1"])
def test_the_dense_limit_is_dense_exchange_bit_for_bit(either: Reports, limit: str):
    for rank in either["dense_limits"]:
        assert rank[limit] == rank["none"]


@pytest.mark.parametrize("path", ["none", "sparse", "calibrating", "dense"])
def test_a_bad_gradient_on_one_rank_stops_all_and_spares_their_residuals(three_ranks: Reports, path: str):
    expected = {"diverged": True, "residual kept": True, "goes on": True}

    assert [rank[path] for rank in three_ranks["bad_gradient"]] == [expected] * 3


def test_all_ranks_stop_at_the_same_step_with_untouched_parameters(either: Reports):
    for rank in either["early_stop"]:
        assert [len(losses) for losses in rank["losses"]] == [5, 0]
        assert rank["diverged"] == [True, True]
        assert rank["unchanged"]


def test_all_ranks_hold_equal_parameters_and_losses(four_ranks: Reports):
    first, *others = four_ranks["equal_parameters"]

    assert others == [first] * 3
    assert first["losses"][1][-1] < first["losses"][0][0]


def test_a_sparse_step_of_this_size_pays_off():
    exchange = ThresholdConfig(density=0.1)

    assert cost.step_traffic([(D,)], num_workers=3, exchange=exchange, level=0.1).bytes < cost.dense_step(D, 3).bytes
