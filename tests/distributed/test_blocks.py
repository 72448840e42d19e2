"""Laws of drawn blocks, on two, three and four ranks whose data differ, and on four that share two nodes."""

from typing import Any

import pytest
from scenarios import Reports

from tests.support.killed_workers import outcome
from tests.support.patience import crowd
from trainers.methods.blocks.jointspar.spec import JointSparConfig
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import LarsConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.spec.workloads import DigitsMlp

ON_TWO_RANKS = ["jointspar"]
ON_THREE_RANKS = ["jointspar"]
ON_FOUR_RANKS = ["jointspar", "jointspar_on_nodes"]
Group = list[dict[str, Any]]


@pytest.fixture(params=[2, 3, 4])
def group(request: pytest.FixtureRequest, two_ranks: Reports, three_ranks: Reports, four_ranks: Reports) -> Group:
    """What each rank saw, where each is a node."""
    return {2: two_ranks, 3: three_ranks, 4: four_ranks}[request.param]["jointspar"]


def _assert_equal(group: Group) -> None:
    assert all(rank["bits"] == group[0]["bits"] and rank["chances"] == group[0]["chances"] for rank in group)
    assert len(set(group[0]["chances"])) == 3


def test_ranks_draw_alike_and_stay_equal(group: Group):
    drawn = [[step["drawn"] for step in rank["steps"]] for rank in group]

    assert drawn == [drawn[0]] * len(group)
    assert len(set(map(tuple, drawn[0]))) > 2
    _assert_equal(group)


def test_ranks_that_share_nodes_stay_equal(four_ranks: Reports):
    _assert_equal(four_ranks["jointspar_on_nodes"])


def test_what_is_not_drawn_is_not_sent(group: Group):
    for rank in group:
        assert all(step["sent"] == step["foreseen"] for step in rank["steps"])
        partial = [step for step in rank["steps"] if len(step["drawn"]) < 3]
        assert partial and all(step["sent"] < step["dense"] for step in partial)


def test_a_restored_group_draws_and_trains_on_bit_for_bit(group: Group):
    for rank in group:
        assert rank["losses"][0] == rank["losses"][1]
        assert rank["bits"][0] == rank["bits"][1]


def test_where_all_blocks_are_drawn_every_bit_is_that_of_plain_training(four_ranks: Reports):
    for rank in four_ranks["jointspar_on_nodes"]:
        assert rank["losses"]["all drawn"] == rank["losses"]["plain"] != rank["losses"]["drawn"]
        assert rank["bits"]["all drawn"] == rank["bits"]["plain"]


def test_where_all_blocks_are_drawn_nodes_train_plainly_but_for_the_order_of_sums_of_more_than_two(group: Group):
    for rank in group:
        drawn, plain = rank["all drawn, plain"]
        assert drawn == (plain if len(group) == 2 else pytest.approx(plain, rel=1e-4))


@pytest.mark.long
def test_a_worker_that_is_killed_changes_nothing():
    config = ReplicaConfig(
        workload=DigitsMlp(),
        optimizer=LarsConfig(),
        exchange=NoneConfig(),
        blocks=JointSparConfig(),
        collective_timeout_s=10 * crowd(),
    )
    assert outcome(config, is_killed=True) == outcome(config, is_killed=False)
