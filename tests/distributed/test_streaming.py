"""Laws of fragments averaged one after the other, and of averages that leave out a rank, on two and three ranks."""

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from scenarios import Reports
from screen_scenarios import AVERAGED, WRONG
from streaming_scenarios import EXCHANGES
from sync_scenarios import INNER

from trainers.segment import SegmentResult
from trainers.training.segment_results import merge

ON_THREE_RANKS = ["streaming", "screened", "lost_replica"]
ON_FOUR_RANKS = ["streaming_pairs", "screened_pairs", "screened_on_nodes"]
Groups = list[list[dict[str, Any]]]


@pytest.fixture(scope="module")
def groups(three_ranks: Reports, four_ranks: Reports) -> Groups:
    """What each rank saw, in a group of two ranks and of three."""
    return [four_ranks["streaming_pairs"][:2], three_ranks["streaming"]]


@pytest.fixture(scope="module")
def screened(three_ranks: Reports, four_ranks: Reports) -> Groups:
    return [four_ranks["screened_pairs"][:2], three_ranks["screened"]]


@pytest.mark.parametrize(("exchange", "inner"), list(product(EXCHANGES, INNER)))
def test_one_fragment_that_nobody_trains_beside_is_diloco_bit_for_bit(groups: Groups, exchange: str, inner: str):
    for group in groups:
        assert all(rank["whole"][f"{exchange}, {inner}"] for rank in group)


def test_own_steps_that_change_nothing_add_nothing(groups: Groups):
    for group in groups:
        for rank in group:
            assert rank["merged"]["add"] == rank["merged"]["replace"]


def test_ranks_that_take_nothing_of_an_average_train_as_if_alone(groups: Groups):
    for group in groups:
        for rank in group:
            own, alone = rank["own"]
            assert own == alone


def test_fragments_send_in_a_period_what_the_whole_model_does_once(groups: Groups):
    for group in groups:
        for rank in group:
            whole, fragments = (sum(step.get("gradient", 0) for step in rank["sent"][count]) for count in ("1", "2"))
            assert abs(whole - fragments) <= 4 < whole  # each average is a whole number of bytes


def test_no_interval_sends_more_than_the_largest_fragment(groups: Groups):
    for group in groups:
        for rank in group:
            sent = [sum(step.values()) for step in rank["sent"]["2"]]
            largest = max(sent)
            assert max(map(sum, zip(sent, sent[1:], sent[2:], strict=False))) == largest
            assert largest < max(sum(step.values()) for step in rank["sent"]["1"])


def test_averages_are_billed_once_whoever_goes_back_while_they_travel(groups: Groups):
    for group in groups:
        for rank in group:
            billed, sent = rank["billed"]
            assert billed == sent > 0


def test_all_ranks_hold_equal_anchors_and_outer_velocities_at_all_times(groups: Groups):
    for group in groups:
        assert all(rank["anchors"] == group[0]["anchors"] for rank in group)
        assert [a != b for a, b in pairwise(group[0]["anchors"])] == [step % 3 == 2 for step in range(1, 14)]


def test_a_fragment_that_is_not_finite_on_one_rank_stops_all_when_its_average_comes_and_changes_nothing(groups: Groups):
    for group in groups:
        for rank in group:
            assert rank["stopped"]["told"] == [False, False, True]
            assert rank["stopped"]["after"] == rank["stopped"]["before"]


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_state_of_the_middle_of_an_average_goes_on_bit_for_bit_and_bills_it_once(groups: Groups, exchange: str):
    for group in groups:
        for rank in group:
            assert rank["resumed"][exchange] == {"travels": True, "alike": True, "undone": True}


@pytest.mark.parametrize("name", AVERAGED)
def test_where_nobody_goes_too_far_averages_are_those_of_everybody_bit_for_bit(screened: Groups, name: str):
    for group in screened:
        assert all(rank["alike"][name] for rank in group)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_rank_that_goes_too_far_leaves_the_average_to_the_others_and_follows_it(
    screened: Groups, four_ranks: Reports, wrong: str
):
    for group in [*screened, four_ranks["screened_on_nodes"]]:
        ranks = [rank["wrong"][wrong] for rank in group]
        expected = np.array(ranks[0]["began"]) - np.mean([rank["moved"] for rank in ranks[:-1]], axis=0)
        for rank in ranks:
            assert rank["told"] == [False, False] and rank["x"] == ranks[0]["x"]
            np.testing.assert_allclose(rank["x"], expected, atol=1e-6)


def test_the_first_averages_leave_nobody_finite_out(screened: Groups):
    for group in screened:
        ranks = [rank["in the warm-up"] for rank in group]
        expected = np.array(ranks[0]["began"]) - np.mean([rank["moved"] for rank in ranks], axis=0)
        assert np.abs(expected).max() > 1e3
        for rank in ranks:
            np.testing.assert_allclose(rank["x"], expected, rtol=1e-5)


@pytest.mark.parametrize("wrong", WRONG)
def test_where_all_ranks_go_too_far_nothing_changes(screened: Groups, wrong: str):
    for group in screened:
        for rank in group:
            seen = rank["all wrong"][wrong]
            assert seen["told"] == [False, False]
            assert seen["after"] == seen["before"]


def test_of_a_rank_that_was_left_out_what_it_kept_before_is_still_sent_and_nothing_else(screened: Groups):
    for group in screened:
        ranks = [rank["compressed"] for rank in group]
        moved, kept = (np.mean([rank[name] for rank in ranks], axis=0) for name in ("moved", "kept"))
        for rank in ranks:
            np.testing.assert_allclose(moved - kept, -np.array(rank["x"]), atol=1e-5)


def test_a_restored_state_judges_as_the_original(screened: Groups):
    for group in screened:
        assert all(rank["restored"] for rank in group)


def test_a_fragment_that_is_not_finite_on_one_rank_is_averaged_by_the_others_and_finite_again(screened: Groups):
    for group in screened:
        for rank in group:
            assert not any(rank["streamed"]["told"])
            assert rank["streamed"]["anchors"] == group[0]["streamed"]["anchors"]
            assert rank["streamed"]["is finite"]


def test_a_rank_whose_losses_were_not_finite_trains_on_with_the_others(three_ranks: Reports):
    ranks = three_ranks["lost_replica"]
    results = [[SegmentResult.model_validate(each) for each in rank["results"]] for rank in ranks]
    before, lost, after = (merge(list(each), leaves_out=True) for each in zip(*results, strict=True))

    assert not (before.diverged or lost.diverged or after.diverged)
    assert (len(lost.losses), len(after.losses)) == (4, 16)
    assert after.losses[-1] < before.losses[-1]
    assert all(rank["is finite"] and rank["parameters"] == ranks[0]["parameters"] for rank in ranks)


def test_within_a_round_a_rank_that_is_not_finite_is_left_out_of_evaluation_and_export(three_ranks: Reports):
    ranks = [rank["within a round"] for rank in three_ranks["lost_replica"]]
    kept = [rank["own"] for rank in ranks[:-1]]

    assert np.isnan(ranks[-1]["own"]["average"]).all() and np.isnan(ranks[-1]["own"]["linear.weight"]).all()
    assert np.isfinite(ranks[0]["evaluated"])
    for name, exported in ranks[0]["exported"].items():
        np.testing.assert_allclose(exported, np.mean([own[name] for own in kept], axis=0), atol=1e-6)


def test_who_takes_part_costs_a_word_that_is_foreseen(screened: Groups):
    for group in screened:
        for rank in group:
            sent, foreseen = rank["sent"]
            assert sent == foreseen
