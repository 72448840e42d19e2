"""Attaching a bare module copies it from rank 0, whatever its dtypes."""

from scenarios import Reports

from trainers.traffic.collectives import broadcast

ON_TWO_RANKS = ["joined"]
BYTES = [4 * 4, 6 * 8, 2 * 16, 3 * 2, 4, 1]  # of the tensors that differ: a bias, and the buffers


def test_all_ranks_begin_as_rank_0_also_with_types_that_gloo_does_not_know(two_ranks: Reports):
    first, second = two_ranks["joined"]

    assert first["bits"] == second["bits"]
    assert first["flag"] and second["flag"]


def test_what_is_equal_on_all_ranks_is_not_sent(two_ranks: Reports):
    assert [rank["bytes"] for rank in two_ranks["joined"]] == [sum(broadcast(each, 2).bytes for each in BYTES)] * 2


def test_a_sparse_buffer_is_refused_by_name_on_all_ranks(two_ranks: Reports):
    for rank in two_ranks["joined"]:
        assert "`graph` must be dense to become that of rank 0, got torch.sparse_coo: add" in rank["refused"]
