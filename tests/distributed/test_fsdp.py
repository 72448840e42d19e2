"""Laws of the exchange between replicas that FSDP2 shards: two replicas of two shards."""

import re

import pytest
from fsdp_scenario import KINDS
from scenarios import Reports

from trainers.methods.replica_config import ReplicaConfig

ON_FOUR_RANKS = ["fsdp"]


@pytest.mark.parametrize("kind", KINDS)
def test_replicas_stay_equal(four_ranks: Reports, kind: str):
    assert len({rank[kind]["whole"] for rank in four_ranks["fsdp"]}) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_state_trains_on_bit_for_bit(four_ranks: Reports, kind: str):
    for rank in four_ranks["fsdp"]:
        assert rank[kind]["halves"] == rank[kind]["whole"]


def test_more_replicas_go_on_with_the_mean_of_what_others_kept_of_the_same_shard(four_ranks: Reports):
    ranks = [rank["inherited"] for rank in four_ranks["fsdp"]]

    assert all(rank["means"] == [True, True] for rank in ranks)
    assert len({rank["bits"] for rank in ranks}) == 1


def test_replicas_whose_gradients_are_reduced_in_bfloat16_stay_equal(four_ranks: Reports):
    assert len({rank["in bfloat16"] for rank in four_ranks["fsdp"]}) == 1


def test_where_everything_is_sent_it_trains_like_plain_ddp(four_ranks: Reports):
    for rank in four_ranks["fsdp"]:
        assert rank["none"]["like ddp"] and rank["everything"]["like ddp"]


def test_modules_that_are_sharded_together_have_one_exchange(four_ranks: Reports):
    ranks = [rank["together"] for rank in four_ranks["fsdp"]]

    assert len({rank["whole"] for rank in ranks}) == 1
    assert all(rank["like ddp"] for rank in ranks)


def test_an_exchange_waits_for_peers_as_long_as_the_default_group(four_ranks: Reports):
    expected = ReplicaConfig.model_fields["collective_timeout_s"].default  # of the group of the tests

    assert [rank["timeout"] for rank in four_ranks["fsdp"]] == [expected] * 4


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("inner alone", r"parameter `2\.weight` must be sharded .*: call fully_shard on the module that holds it"),
        ("by columns", r"parameter `0\.weight` must be sharded by dimension 0, got \(Shard\(dim=1\),\)"),
        ("frozen", "nothing"),
    ],
)
def test_all_that_is_trained_is_sharded_by_rows_or_refused_by_name(four_ranks: Reports, case: str, message: str):
    for rank in four_ranks["fsdp"]:
        assert re.search(message, rank["partly"][case])


@pytest.mark.parametrize("kind", ["topk", "signsgd", "sparse_loco"])
def test_replicas_send_less_than_a_dense_shard(four_ranks: Reports, kind: str):
    for rank in four_ranks["fsdp"]:
        assert 0 < rank[kind]["bytes"] < rank["none"]["bytes"] / 2


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("powersgd", "`powersgd` looks at matrices or layers"),
        ("cser", "`cser` follows the learning rate"),
        ("levels", "`levels` must be `static` .*got `warmup`"),
        ("clip", "`clip` must be null where a model is sharded, got 1: each shard"),
        ("a range", "`density` must be one number"),
        ("float16", "parameters must be float32 or bfloat16, .* got .*float16"),
        ("reduced in float16", "`reduce_dtype` must be torch.float32 or torch.bfloat16, got torch.float16"),
        ("two dimensions", "`model` must be sharded over one dimension"),
        ("attach", "`model` must hold its parameters whole"),
        ("twice", "`model` must have no all-reduce hook, and it has one already"),
        ("no all-reduce", r"accumulate with `model.set_requires_gradient_sync\(False\)`"),
        ("a seed", "`seed` must be the same on all ranks, and that of rank 1 differs"),
    ],
)
def test_what_a_shard_cannot_do_is_refused(four_ranks: Reports, case: str, message: str):
    for rank in four_ranks["fsdp"]:
        assert re.search(message, rank["refused"][case])
