"""Laws of the exchange under torch's DistributedDataParallel, on four ranks."""

import re

import pytest
from ddp_scenario import IN_BFLOAT16, KINDS
from scenarios import Reports

ON_FOUR_RANKS = ["ddp"]


@pytest.mark.parametrize("kind", KINDS | IN_BFLOAT16)
def test_all_ranks_hold_equal_parameters(four_ranks: Reports, kind: str):
    assert len({rank[kind]["whole"] for rank in four_ranks["ddp"]}) == 1


@pytest.mark.parametrize("kind", KINDS | IN_BFLOAT16)
def test_a_loaded_state_trains_on_bit_for_bit(four_ranks: Reports, kind: str):
    for rank in four_ranks["ddp"]:
        assert rank[kind]["halves"] == rank[kind]["whole"]


def test_where_everything_is_sent_it_trains_like_plain_ddp(four_ranks: Reports):
    first = four_ranks["ddp"][0]

    assert first["everything"]["whole"] == first["none"]["whole"]
    assert first["everything, bfloat16"]["whole"] == first["none, bfloat16"]["whole"]
    assert first["none"]["weights"] == pytest.approx(first["plain"], rel=1e-4, abs=1e-6)


def test_an_overflow_on_one_rank_is_a_skipped_step_that_spares_all_memories(four_ranks: Reports):
    expected = {"skipped": True, "memory kept": True, "goes on": True}

    assert [rank["overflow"] for rank in four_ranks["ddp"]] == [expected] * 4


def test_memories_do_not_follow_the_loss_scale(four_ranks: Reports):
    assert all(rank["scaled"]["like unscaled"] for rank in four_ranks["ddp"])


@pytest.mark.parametrize("kind", ["none", "topk"])
def test_bfloat16_trains_like_float32_up_to_its_rounding(four_ranks: Reports, kind: str):
    first = four_ranks["ddp"][0]

    assert first[f"{kind}, bfloat16"]["weights"] == pytest.approx(first[kind]["weights"], rel=0.05, abs=0.01)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("unused", "`find_unused_parameters` must be False: `topk` sends later what it keeps"),
        ("unused, two ways", "`find_unused_parameters` must be False: `doublesqueeze`"),
        ("unused, without a memory", "nothing"),
        ("unused, without a residual", "nothing"),
        ("unused, dense", "nothing"),
        ("a range", "`density` must be one number"),
        ("float16", "must be float32 or bfloat16, .*got cpu, torch.float16"),
        ("accordion", "`accordion` needs `follow_decay: false` and `epoch_steps`"),
        ("lr_corrected", "`lr_corrected` must be false"),
        ("liec_sgd", "follows the learning rate, .*give `doublesqueeze`"),
        ("local steps", "by themselves under this `zero_one_adam`, .*give it to `attach`"),
    ],
)
def test_what_cannot_be_exchanged_is_refused(four_ranks: Reports, case: str, message: str):
    for rank in four_ranks["ddp"]:
        assert re.search(message, rank["refused"][case])
