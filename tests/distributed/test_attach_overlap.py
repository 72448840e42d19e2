"""An exchange under DDP runs beside backward, with the bits of one that follows it, and ends when backward fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from attach_overlap_scenario import KINDS
from scenarios import Reports

from tests.support.patience import crowd

ON_TWO_RANKS = ["overlapped"]
ROOT = Path(__file__).parents[2]
#: Far less than the half hour that a collective of the script's group waits.
SECONDS = 60 * crowd()


@pytest.mark.parametrize("kind", KINDS)
def test_an_exchange_beside_backward_has_the_bits_of_one_behind_it(two_ranks: Reports, kind: str):
    bits = [each for rank in two_ranks["overlapped"] for each in rank["bits"][kind]]

    assert len({*bits}) == (2 if kind == "cser" else 1)  # whose ranks drift apart
    assert bits[::2] == bits[1::2]


def test_compress_gradients_exchanges_beside_backward_with_the_same_bits(two_ranks: Reports):
    assert len({bits for rank in two_ranks["overlapped"] for bits in rank["by compress_gradients"]}) == 1


def test_from_the_third_step_on_a_bucket_is_under_way_when_backward_comes_to_the_first_layer(two_ranks: Reports):
    for rank in two_ranks["overlapped"]:
        assert rank["filled"][""] == [False, False, True, True]
        assert rank["filled"]["serial"] == [False] * 4


def test_an_exchange_stays_behind_a_backward_with_collectives_of_its_own_or_unused_parameters(two_ranks: Reports):
    for rank in two_ranks["overlapped"]:
        assert not rank["finding unused"]
        assert not rank["sync batch norm"]


def test_a_static_graph_trains_with_the_same_bits(two_ranks: Reports):
    assert len({bits for rank in two_ranks["overlapped"] for bits in rank["static graph"]}) == 1


def test_under_reentrant_checkpointing_an_exchange_stays_behind_backward(two_ranks: Reports):
    for rank in two_ranks["overlapped"]:
        (beside, began), (behind, _) = rank["reentrant"]
        assert beside == behind and not began


def test_a_part_that_is_computed_again_later_than_in_the_steps_before_is_refused_on_all_ranks(two_ranks: Reports):
    for rank in two_ranks["overlapped"]:
        assert "backward computes a part of the model again in a task of its own" in rank["reentrant later"]


def test_a_backward_that_fails_on_one_rank_ends_the_processes_soon(tmp_path: Path):
    script = str(Path(__file__).with_name("fails_in_backward.py"))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), f"{tmp_path}/meet"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        (printed, raised), (failed, refused) = (rank.communicate(timeout=SECONDS) for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()

    assert [rank.returncode for rank in ranks] == [1, 1]
    assert printed.splitlines()[-1] == "step 2" and "PeerLost" in raised
    assert failed.splitlines()[-1] == "failed: no room on one rank"
    assert "Expected to have finished reduction in the prior iteration" in refused  # DDP's own words
