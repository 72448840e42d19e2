"""Laws of the exchange by thresholds, of training over it, and of groups that lose a rank."""

import numpy as np
import pytest
from exchange_harness import SHAPES
from lost_ranks import PATTERNS
from scenarios import DEADLY, Reports

from tests.support.patience import crowd
from trainers.methods.exchange.threshold.spec import ThresholdConfig
from trainers.traffic import collectives, cost

ON_THREE_RANKS = ["conservation", "overflow", "bad_gradient", "early_stop"]
ON_FOUR_RANKS = [
    "equal_parameters", "early_stop", "replicas_on_nodes", "paced_messages", "sums_in_pairs", "silent_rank", DEADLY,
]  # fmt: skip
#: What an idle machine may add to a timeout.
LATE_S = 20.0


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

    assert [report["sent"][step] for step in full] == pytest.approx([24.0] * len(full))
    assert all(report["capacities"][step] > 100 for step in full)


def test_a_dense_level_sends_everything_and_empties_the_residual(three_ranks: Reports):
    assert three_ranks["conservation"][0]["densities"][30:33] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("steps", "plan"), [(slice(5, 15), 0.02), (slice(20, 30), 0.1), (slice(38, 50), 0.05)])
def test_measured_density_stays_within_twice_the_plan(three_ranks: Reports, steps: slice, plan: float):
    measured = np.mean(three_ranks["conservation"][0]["densities"][steps])

    assert plan / 2 <= measured <= plan * 2


@pytest.mark.parametrize("path", ["none", "sparse", "calibrating", "dense"])
def test_a_bad_gradient_on_one_rank_stops_all_and_spares_their_residuals(three_ranks: Reports, path: str):
    expected = {"diverged": True, "residual kept": True, "goes on": True}

    assert [rank[path] for rank in three_ranks["bad_gradient"]] == [expected] * 3


def test_all_ranks_stop_at_the_same_step_with_untouched_parameters(either: Reports):
    for rank in either["early_stop"]:
        assert [len(losses) for losses in rank["losses"]] == [5, 0]
        assert rank["diverged"] == [True, True]
        assert rank["unchanged"]


@pytest.mark.parametrize("optimizer", ["schedulefree_sgd", "schedulefree_plus"])
def test_all_ranks_hold_equal_parameters_and_losses(four_ranks: Reports, optimizer: str):
    first, *others = (rank[optimizer] for rank in four_ranks["equal_parameters"])

    assert others == [first] * 3
    assert first["losses"][1][-1] < first["losses"][0][0]


def test_a_checkpoint_of_ranks_that_share_nodes_trains_on_bit_for_bit(four_ranks: Reports):
    for rank in four_ranks["replicas_on_nodes"]:
        assert rank["losses"][1] == rank["losses"][0]
        assert rank["bits"][:2] == [four_ranks["replicas_on_nodes"][0]["bits"][0]] * 2


def test_on_other_nodes_a_checkpoint_trains_on_with_what_the_old_ones_kept(four_ranks: Reports):
    for rank in four_ranks["replicas_on_nodes"]:
        stayed, _, moved, _ = rank["losses"]
        assert rank["kept"]
        assert moved[0] == pytest.approx(stayed[0], rel=1e-6)  # the same weights and batches, added up in another order
        assert rank["bits"][2] == four_ranks["replicas_on_nodes"][0]["bits"][2]


def test_all_ranks_on_one_machine_are_found_to_share_a_node(four_ranks: Reports):
    assert [rank["found"] for rank in four_ranks["replicas_on_nodes"]] == [[[0, 1, 2, 3]]] * 4


def test_dense_training_on_two_nodes_sends_what_two_workers_would_between_them(four_ranks: Reports):
    ranks = four_ranks["replicas_on_nodes"]

    dense = len(ranks[0]["losses"][-1]) * collectives.dense_step(ranks[0]["entries"], 2).bytes

    assert [(rank["sent"], rank["dense"]) for rank in ranks] == [(dense, dense), (0, dense)] * 2


def test_two_ranks_swap_small_tensors_and_sum_to_the_bits_of_an_all_reduce(four_ranks: Reports):
    for rank in four_ranks["sums_in_pairs"]:
        assert all(is_equal and was_swapped == is_small for is_equal, was_swapped, is_small in rank.values())
        assert {is_small for *_, is_small in rank.values()} == {True, False}


def test_nobody_has_a_message_sooner_than_the_link_allows(four_ranks: Reports):
    source, sender, *others = four_ranks["paced_messages"]

    assert source["times"][1] - sender["times"][0] >= source["send"]
    for rank in (sender, *others):
        assert rank["times"][2] - source["times"][1] >= source["broadcast"]


@pytest.mark.parametrize("scenario", ["silent_rank", "dead_rank"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_lost_rank_is_an_error_in_time_on_all_others_and_spares_their_memories(
    four_ranks: Reports, scenario: str, pattern: str
):
    survivors = [rank[pattern] for rank in four_ranks[scenario][:3]]

    assert all(each["told"] and each["state kept"] for each in survivors)
    assert max(each["seconds late"] for each in survivors) < LATE_S * crowd()


def test_a_sparse_step_of_this_size_pays_off():
    exchange = ThresholdConfig(density=0.1)

    assert (
        cost.step_traffic(SHAPES, num_workers=3, exchange=exchange, level=0.1).bytes
        < collectives.dense_step(collectives.num_elements(SHAPES), 3).bytes
    )
