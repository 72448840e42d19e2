"""Laws of drawn blocks, on three ranks whose data differ, and on four that share two nodes."""

import pytest
from killed_workers import outcome
from scenarios import Reports

from trainers.config import DigitsMlp, JointSparConfig, LarsConfig, NoneConfig, ReplicaConfig

ON_THREE_RANKS = ["jointspar"]
ON_FOUR_RANKS = ["jointspar_on_nodes"]


def test_ranks_draw_alike_and_stay_equal(three_ranks: Reports, four_ranks: Reports):
    ranks = three_ranks["jointspar"]
    assert all(
        [step["drawn"] for step in rank["steps"]] == [step["drawn"] for step in ranks[0]["steps"]] for rank in ranks
    )
    assert len({tuple(step["drawn"]) for step in ranks[0]["steps"]}) > 2
    for group in (ranks, four_ranks["jointspar_on_nodes"]):
        assert all(rank["bits"] == group[0]["bits"] and rank["chances"] == group[0]["chances"] for rank in group)
        assert len(set(group[0]["chances"])) == 3


def test_what_is_not_drawn_is_not_sent(three_ranks: Reports):
    for rank in three_ranks["jointspar"]:
        assert all(step["sent"] == step["foreseen"] for step in rank["steps"])
        partial = [step for step in rank["steps"] if len(step["drawn"]) < 3]
        assert partial and all(step["sent"] < step["dense"] for step in partial)


def test_a_restored_group_draws_and_trains_on_bit_for_bit(three_ranks: Reports):
    for rank in three_ranks["jointspar"]:
        assert rank["losses"][0] == rank["losses"][1]
        assert rank["bits"][0] == rank["bits"][1]


def test_where_all_blocks_are_drawn_every_bit_is_that_of_plain_training(four_ranks: Reports):
    for rank in four_ranks["jointspar_on_nodes"]:
        assert rank["losses"]["all drawn"] == rank["losses"]["plain"] != rank["losses"]["drawn"]
        assert rank["bits"]["all drawn"] == rank["bits"]["plain"]


def test_where_all_blocks_are_drawn_three_nodes_train_plainly_but_for_the_order_of_sums(three_ranks: Reports):
    for rank in three_ranks["jointspar"]:
        drawn, plain = rank["all drawn, plain"]
        assert drawn == pytest.approx(plain, rel=1e-4)


@pytest.mark.long
def test_a_worker_that_is_killed_changes_nothing():
    config = ReplicaConfig(
        workload=DigitsMlp(),
        optimizer=LarsConfig(),
        exchange=NoneConfig(),
        blocks=JointSparConfig(),
        collective_timeout_s=10,
    )
    assert outcome(config, is_killed=True) == outcome(config, is_killed=False)
