"""Metrics of the whole validation set do not depend on the number of ranks that it is divided among."""

from typing import Any

import pytest
from scenarios import Reports
from whole_set_scenarios import NODES, workload

from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.spec.workloads import OwnWorkload
from trainers.training.process_group import ProcessGroup
from trainers.training.replica import Replica
from trainers.workload import WorkloadError

ON_TWO_RANKS = ["whole_set"]
ON_THREE_RANKS = ["whole_set", "whole_set_of_the_present", "paced_gather", "slow_gather"]


@pytest.fixture(params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """Return the reports of 2 or 3 ranks."""
    reports: Reports = request.getfixturevalue({2: "two_ranks", 3: "three_ranks"}[request.param])
    return reports["whole_set"]


def config(workload: OwnWorkload) -> ReplicaConfig:
    return ReplicaConfig(workload=workload, optimizer=SgdConfig(), exchange=NoneConfig())


@pytest.mark.parametrize("place", ["apart", "on nodes"])
def test_an_auc_of_several_ranks_is_that_of_one_process_bit_for_bit(ranks: list[dict[str, Any]], place: str) -> None:
    alone = Replica(config(workload("Ranked")), 0, 1, device="cpu").evaluate().metrics

    assert 0 < alone["auc"] < 1
    assert [rank[place]["Ranked"]["auc"] for rank in ranks] == [alone["auc"]] * len(ranks)
    assert ranks[0][place]["Ranked"]["accuracy"] == pytest.approx(alone["accuracy"])


@pytest.mark.parametrize("name", ["Echo", "few"])
@pytest.mark.parametrize("place", ["apart", "on nodes"])
def test_all_samples_come_to_the_first_rank_in_their_order(ranks: list[dict[str, Any]], place: str, name: str) -> None:
    assert [rank[place][name]["is_whole"] for rank in ranks] == [1] * len(ranks)


def test_all_samples_come_to_the_first_rank_where_others_are_away(three_ranks: Reports) -> None:
    assert [rank["is_whole"] for rank in three_ranks["whole_set_of_the_present"]] == [1] * 3


@pytest.mark.parametrize("place", ["apart", "on nodes"])
def test_a_gather_takes_vectors_of_any_lengths_to_the_first_rank_alone(ranks: list[dict[str, Any]], place: str) -> None:
    first, *others = (rank[place]["gathered"] for rank in ranks)

    assert first == [[rank] * 3 * rank for rank in range(len(ranks))]
    assert others == [[]] * len(others)


def test_a_gather_sends_each_vector_once_to_a_leader_and_once_to_the_first_rank(ranks: list[dict[str, Any]]) -> None:
    def control(sent: dict[str, int]) -> int:
        return sent.get("control", 0)

    apart, on_nodes = ([rank[place]["sent"] for rank in ranks] for place in ("apart", "on nodes"))
    # Of numbers of 8 bytes: the vectors, their lengths, and in turn what tells the length of a message.
    vectors = [24 * rank for rank in range(1, len(ranks))]
    assert [control(between) for between, _ in apart] == [0, *(8 + 8 + 8 + each for each in vectors)]
    last = NODES[len(ranks)][0][-1]
    assert control(on_nodes[last][1]) == 8 + vectors[last - 1]


def test_all_vectors_of_a_gather_pass_the_link_of_the_first_rank(three_ranks: Reports) -> None:
    first, *others = three_ranks["paced_gather"]

    assert first == [[0, 1, 2 * 20_000]]
    assert others == [[[8, 1, 0], [20_000, 1, 0]]] * 2


def test_a_gather_over_a_slow_link_may_take_longer_than_the_timeout(three_ranks: Reports) -> None:
    first, *others = three_ranks["slow_gather"]

    assert first["are_equal"] == [True] * 3
    assert first["sent"].get("control", 0) == 0
    assert [rank["sent"]["control"] for rank in others] == [8 + rank["bytes"] for rank in others]


def test_ranks_whose_predictions_differ_in_shape_are_refused_by_what_to_do() -> None:
    named = workload("Echo").model_copy(update={"factory": "ranked_models:ByRank"})

    with ProcessGroup(config(named), 2, device="cpu") as group, pytest.raises(WorkloadError, match="pad them to one"):
        group.evaluate()
