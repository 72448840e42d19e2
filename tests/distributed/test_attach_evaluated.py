"""What a loop evaluates, saves and ends with, where each rank has parameters and buffers of its own."""

import pytest
from attach_scenario import EVALUATED
from scenarios import Reports

ON_TWO_RANKS = ["evaluated"]


@pytest.mark.parametrize("case", [case for case in EVALUATED if case != "topk"])
def test_ranks_evaluate_and_end_with_one_state_buffers_and_frozen_parameters_too(two_ranks: Reports, case: str):
    first, second = (rank[case] for rank in two_ranks["evaluated"])

    assert first["own"] != second["own"]
    assert first["lent"] == second["lent"]
    assert first["left"] == second["left"] == first["lent"]


@pytest.mark.parametrize("case", EVALUATED)
def test_each_rank_trains_on_from_its_own_state(two_ranks: Reports, case: str):
    for rank in two_ranks["evaluated"]:
        assert rank[case]["taken back"] == rank[case]["own"]


@pytest.mark.parametrize("case", [case for case in EVALUATED if case != "topk"])
def test_an_average_of_weights_outside_the_model_is_lent_the_mean_of_the_ranks(two_ranks: Reports, case: str):
    first, second = (rank[case] for rank in two_ranks["evaluated"])

    assert first["own average"] != second["own average"]
    assert first["lent average"] == second["lent average"]
    for rank in (first, second):
        assert rank["by hand"]
        assert rank["average taken back"] == rank["own average"]


def test_where_ranks_have_the_same_parameters_a_mean_changes_nothing_as_under_plain_ddp(two_ranks: Reports):
    for rank in two_ranks["evaluated"]:
        assert len({bits for name, bits in rank["topk"].items() if name in ("own", "lent", "taken back", "left")}) == 1
        assert len({rank["topk"][name] for name in ("own average", "lent average", "average taken back")}) == 1
