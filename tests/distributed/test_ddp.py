"""Laws of the exchange under torch's DistributedDataParallel, on four ranks."""

from typing import Any

import pytest
from ddp_scenario import KINDS

Reports = dict[str, list[dict[str, Any]]]


@pytest.mark.parametrize("kind", KINDS)
def test_all_ranks_hold_equal_parameters(four_ranks: Reports, kind: str):
    assert len({rank[kind]["whole"] for rank in four_ranks["ddp"]}) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_state_trains_on_bit_for_bit(four_ranks: Reports, kind: str):
    for rank in four_ranks["ddp"]:
        assert rank[kind]["halves"] == rank[kind]["whole"]


def test_where_everything_is_sent_it_trains_like_plain_ddp(four_ranks: Reports):
    first = four_ranks["ddp"][0]

    assert first["everything"]["whole"] == first["none"]["whole"]
    assert first["none"]["weights"] == pytest.approx(first["plain"], rel=1e-4, abs=1e-6)


def test_an_overflow_on_one_rank_is_a_skipped_step_that_spares_all_memories(four_ranks: Reports):
    expected = {"skipped": True, "memory kept": True, "goes on": True}

    assert [rank["overflow"] for rank in four_ranks["ddp"]] == [expected] * 4


def test_memories_do_not_follow_the_loss_scale(four_ranks: Reports):
    assert all(rank["scaled"]["like unscaled"] for rank in four_ranks["ddp"])
