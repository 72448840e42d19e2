"""An exchange that changes between steps, on two, three and four ranks whose data differ."""

from typing import Any

import numpy as np
import pytest
from auto_scenarios import PLAIN, REPLICA_RUN, STATES
from scenarios import Reports

ON_THREE_RANKS = ["auto"]
ON_FOUR_RANKS = ["auto_on_nodes", "auto_of_two"]
Groups = list[list[dict[str, Any]]]


@pytest.fixture(scope="module")
def groups(three_ranks: Reports, four_ranks: Reports) -> Groups:
    """What each rank saw, in a group of two ranks, and of three."""
    return [four_ranks["auto_of_two"][:2], three_ranks["auto"]]


def test_nothing_is_lost_at_any_change(groups: Groups, four_ranks: Reports):
    for rank in (*groups[0], *groups[1]):
        assert max(rank["lost"]) < 2e-4  # float16 rounds what PowerSGD sends densely
    assert max(rank["lost"] for rank in four_ranks["auto_on_nodes"]) < 2e-4


def test_ranks_agree_once_gradients_are_exchanged(groups: Groups, four_ranks: Reports):
    for ranks in (*groups, four_ranks["auto_on_nodes"]):
        assert all(rank["x"] == ranks[0]["x"] for rank in ranks)


@pytest.mark.parametrize("option", PLAIN)
def test_an_option_that_stays_trains_as_its_kind_bit_for_bit(groups: Groups, option: str):
    for rank in (*groups[0], *groups[1]):
        ours, plain = rank["unchanged"][option]
        assert ours == plain


@pytest.mark.parametrize("option", PLAIN)
def test_what_an_option_sends_is_foreseen(groups: Groups, option: str):
    for ranks in groups:
        sent, foreseen = np.array([rank["sent"][option] for rank in ranks]).T
        # the room for a threshold's entries follows what was found
        assert sent.max() == pytest.approx(foreseen[0], rel=0.2 if option.startswith("threshold") else 0)


def test_a_gradient_that_is_not_finite_changes_nothing_at_a_change(groups: Groups):
    for rank in (*groups[0], *groups[1]):
        stopped = rank["stopped"]
        assert stopped["diverged"] and stopped["kept"]
        assert stopped["lost"] < 1e-5


def test_momentum_goes_through_local_updates_as_if_gradients_had_been_exchanged(groups: Groups):
    for rank in (*groups[0], *groups[1]):
        changing, plain = rank["with momentum"]
        np.testing.assert_allclose(changing, plain, atol=1e-5)


@pytest.mark.parametrize("name", STATES)
def test_after_local_updates_ranks_take_the_means_of_their_parameters_and_of_what_their_optimizers_hold(
    groups: Groups, name: str
):
    for rank in (*groups[0], *groups[1]):
        agreed = rank["agreed"][name]
        assert agreed["apart"] > 1e-2 and agreed["off"] < 1e-6


def test_replicas_go_on_bit_for_bit_from_any_option_to_the_next(groups: Groups):
    for rank in groups[1]:
        changes = [each for optimizer in rank["resumed"].values() for each in optimizer]
        assert len(changes) == 3 * (len(REPLICA_RUN) - 1)
        assert all(straight_on == from_its_checkpoint for straight_on, from_its_checkpoint in changes)
