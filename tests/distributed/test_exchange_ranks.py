"""Laws of the exchange, on three and four ranks (three catch what powers of two hide)."""

from typing import Any

import numpy as np
import pytest
from exchange_bench import SHAPES
from exchange_kinds import CONSERVING, DENSE, FOR_FOUR, FOR_NODES, FOR_TWO, FORESEEN, FORESEEN_FIRST, KINDS, UNBIASED

from trainers import cost
from trainers.config import ThresholdConfig

Reports = dict[str, list[dict[str, Any]]]
#: Bytes by which the mean over ranks that send different numbers may differ from the whole number that predicts it.
ROUNDING = 3


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


@pytest.mark.parametrize("limit", DENSE)
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


def test_a_checkpoint_of_ranks_that_share_nodes_trains_on_bit_for_bit(four_ranks: Reports):
    for rank in four_ranks["replicas_on_nodes"]:
        assert rank["losses"][1] == rank["losses"][0]
        assert rank["bits"][:2] == [four_ranks["replicas_on_nodes"][0]["bits"][0]] * 2


def test_on_other_nodes_a_checkpoint_trains_on_with_new_memories(four_ranks: Reports):
    for rank in four_ranks["replicas_on_nodes"]:
        stayed, _, moved, _ = rank["losses"]
        assert rank["begun anew"]
        assert moved[0] == pytest.approx(stayed[0], rel=1e-6)  # the same weights and batches, added up in another order
        assert rank["bits"][2] == four_ranks["replicas_on_nodes"][0]["bits"][2]


def test_all_ranks_on_one_machine_are_found_to_share_a_node(four_ranks: Reports):
    assert [rank["found"] for rank in four_ranks["replicas_on_nodes"]] == [[[0, 1, 2, 3]]] * 4


def test_dense_training_on_two_nodes_sends_what_two_workers_would_between_them(four_ranks: Reports):
    ranks = four_ranks["replicas_on_nodes"]

    dense = len(ranks[0]["losses"][-1]) * cost.dense_step(ranks[0]["entries"], 2).bytes

    assert [(rank["sent"], rank["dense"]) for rank in ranks] == [(dense, dense), (0, dense)] * 2


class Trials:
    """What the ranks of several groups saw of each kind."""

    def __init__(self, three_ranks: Reports, four_ranks: Reports) -> None:
        pairs = four_ranks["pairs"]
        on_nodes = [four_ranks["kinds_on_even_nodes"], four_ranks["kinds_on_uneven_nodes"]]
        self._groups = [three_ranks["kinds"], four_ranks["kinds_of_four"], pairs[:2], pairs[2:], *on_nodes]

    def of(self, kind: str) -> list[list[dict[str, Any]]]:
        """Return the trials of `kind`, by group and rank."""
        return [[rank[kind] for rank in group] for group in self._groups if kind in group[0]]


@pytest.fixture
def trials(three_ranks: Reports, four_ranks: Reports) -> Trials:
    return Trials(three_ranks, four_ranks)


@pytest.mark.parametrize("kind", CONSERVING)
def test_what_is_not_sent_is_kept(trials: Trials, kind: str):
    for group in trials.of(kind):
        assert max(rank["lost"] for rank in group) < 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_all_ranks_receive_equal_bits_of_every_kind(trials: Trials, kind: str):
    for group in trials.of(kind):
        assert [rank["bits"] for rank in group] == [group[0]["bits"]] * len(group)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_on_one_rank_stops_all_and_changes_no_state(trials: Trials, kind: str):
    for group in trials.of(kind):
        assert all(rank["diverged"] and rank["state kept"] for rank in group)


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_exchange_goes_on_bit_for_bit(trials: Trials, kind: str):
    for group in trials.of(kind):
        assert all(rank["restored"] for rank in group)


@pytest.mark.parametrize("kind", KINDS)
def test_of_zeros_every_kind_makes_zeros_but_a_vote_which_is_a_draw(trials: Trials, kind: str):
    expected = 1.0 if kind == "majority" else 0.0

    assert all(rank["of zeros"] == [expected] * 2 for group in trials.of(kind) for rank in group)


@pytest.mark.parametrize(
    ("kind", "steps"), [*((kind, 6) for kind in FORESEEN), *((kind, 1) for kind in FORESEEN_FIRST)]
)
def test_the_ledger_counts_what_was_predicted(trials: Trials, kind: str, steps: int):
    for group in trials.of(kind):
        sent = np.mean([rank["bytes"][:steps] for rank in group if rank["leads"]], axis=0)
        np.testing.assert_allclose(sent, group[0]["predicted"], rtol=0, atol=ROUNDING if kind == "gtopk" else 0)


@pytest.mark.parametrize("kind", UNBIASED)
def test_the_errors_of_an_unbiased_kind_cancel_out(three_ranks: Reports, kind: str):
    for rank in three_ranks["averages"]:
        once, often = rank[kind]
        assert 0 < often < 0.3 * once


@pytest.mark.parametrize("gradients", ["full", "of its rank"])
def test_powersgd_is_exact_where_its_rank_suffices(three_ranks: Reports, gradients: str):
    assert max(rank[gradients] for rank in three_ranks["low_rank"]) < 1e-5


def test_nobody_has_a_message_sooner_than_the_link_allows(four_ranks: Reports):
    source, sender, *others = four_ranks["paced_messages"]

    assert source["times"][1] - sender["times"][0] >= source["send"]
    for rank in (sender, *others):
        assert rank["times"][2] - source["times"][1] >= source["broadcast"]


@pytest.mark.parametrize("kinds", [FOR_TWO, FOR_FOUR, *FOR_NODES.values()])
def test_groups_of_two_and_four_and_nodes_try_kinds_too(trials: Trials, kinds: list[str]):
    assert all(len(trials.of(kind)) >= 2 for kind in kinds)


@pytest.mark.parametrize("kind", KINDS)
def test_only_leaders_send_between_nodes_and_all_send_the_same_within_one(trials: Trials, kind: str):
    for group in trials.of(kind):
        assert all(sum(rank["bytes"]) == 0 for rank in group if not rank["leads"])
        assert all(rank["bytes within"] == [rank["predicted within"]] * 6 for rank in group)


@pytest.mark.parametrize("limit", DENSE)
def test_on_nodes_too_the_dense_limit_is_dense_exchange_bit_for_bit(four_ranks: Reports, limit: str):
    for rank in four_ranks["dense_limits_on_nodes"]:
        assert rank[limit] == four_ranks["dense_limits_on_nodes"][0]["none"]


def test_a_sparse_step_of_this_size_pays_off():
    exchange = ThresholdConfig(density=0.1)

    assert (
        cost.step_traffic(SHAPES, num_workers=3, exchange=exchange, level=0.1).bytes
        < cost.dense_step(cost.num_elements(SHAPES), 3).bytes
    )
