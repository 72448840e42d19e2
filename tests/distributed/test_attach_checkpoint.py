"""A checkpoint of torch.distributed holds the memory of every rank, for as many ranks and for others."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from attach_checkpoint_scenario import INHERITED, SAVED
from attach_scenario import DILOCO, TOPK, Script, bare
from scenarios import Reports, run_ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def two_ranks(folder: Path) -> Reports:
    (folder / "two").mkdir()
    (folder / "saved").mkdir()
    return run_ranks(folder / "two", 2, ["saved"])


@pytest.fixture(scope="module")
def three_ranks(folder: Path, two_ranks: Reports) -> Reports:
    (folder / "three").mkdir()
    return run_ranks(folder / "three", 3, ["inherited"])


@pytest.mark.parametrize("name", SAVED)
def test_a_run_goes_on_from_a_standard_checkpoint_bit_for_bit(two_ranks: Reports, name: str):
    for rank in two_ranks["saved"]:
        assert len({*rank[name]["bits"]}) == 1


@pytest.mark.parametrize("name", INHERITED)
def test_a_standard_checkpoint_holds_the_memory_of_every_rank(two_ranks: Reports, name: str):
    assert all(rank[name]["kept apart"] for rank in two_ranks["saved"])


def test_a_state_as_earlier_releases_saved_it_is_loaded():
    first, second = (Script(0, bare=True, sync=DILOCO) for _ in range(2))
    assert first.handle is not None and second.handle is not None
    old = bare(first.train(range(3)).handle)

    second.handle.load_state_dict(old)

    assert bare(second.handle)["scalars"] == old["scalars"]
    assert all(torch.equal(each, old["tensors"][name]) for name, each in bare(second.handle)["tensors"].items())


@pytest.mark.parametrize("name", INHERITED)
def test_the_memories_of_two_ranks_go_on_in_three_as_their_mean(three_ranks: Reports, name: str):
    assert all(rank[name]["mean"] for rank in three_ranks["inherited"])


@pytest.mark.parametrize("name", INHERITED)
def test_a_memory_that_is_dropped_or_shared_out_is_said_once(three_ranks: Reports, name: str):
    first, *others = (rank[name] for rank in three_ranks["inherited"])

    assert first["said"] == {
        "mean": ["memories of 2 ranks go on in 3: each rank begins with the mean of their residuals"],
        "drop": ["memories of 2 ranks go on in 3: their residuals are dropped"],
    }
    assert all(rank["said"] == {"mean": [], "drop": []} for rank in others)
    assert all(rank["dropped"] for rank in (first, *others))


def test_moments_and_counts_go_on_where_residuals_are_dropped(three_ranks: Reports):
    for rank in three_ranks["inherited"]:
        assert rank["dropped"] == {"moments": True, "counts": True, "residual": False}


def test_a_warm_up_goes_on_where_residuals_are_dropped():
    how = {"exchange": TOPK | {"levels": {"kind": "warmup", "steps": 40}}}
    first, heir = (Script(0, bare=True, **how) for _ in range(2))
    assert first.handle is not None and heir.handle is not None
    state = bare(first.handle) | {"num_ranks": 2}
    state["scalars"]["exchange"]["levels"] = {"taken": 3}
    state["tensors"]["exchange.residual"].fill_(1.0)

    heir.handle.inherit({"rank-0": state, "rank-1": state}, residuals="drop")

    begun = bare(heir.handle)
    assert begun["scalars"] == state["scalars"]
    assert not begun["tensors"]["exchange.residual"].any()


@pytest.mark.parametrize(
    ("exchange", "number"), [(TOPK, {"bucket_mib": 8.0}), ({"kind": "blockwise", "block": 64}, {"block": 128})]
)
def test_a_memory_that_other_numbers_lay_out_is_not_inherited(exchange: dict[str, Any], number: dict[str, Any]):
    first, heir = (Script(0, bare=True, exchange=each).handle for each in (exchange, exchange | number))
    assert first is not None and heir is not None
    state = bare(first) | {"num_ranks": 2}

    with pytest.raises(ValueError, match="which lays out the memory, is"):
        heir.inherit({"rank-0": state, "rank-1": state}, residuals="mean")


@pytest.mark.parametrize("name", INHERITED)
def test_ranks_that_have_inherited_train_alike(three_ranks: Reports, name: str):
    assert len({rank[name]["bits"] for rank in three_ranks["inherited"]}) == 1


def test_steps_are_counted_on_where_a_memory_is_dropped(three_ranks: Reports):
    assert [rank["steps"] for rank in three_ranks["inherited"]] == [6, 6, 6]


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("another number of ranks", "must be what rank . of 3 has saved, .* give the states of all ranks to `inherit`"),
        ("sync", "`sync` must go on with as many ranks"),
        (
            "another method",
            "`states` must be of the same exchange and model: `exchange.kind` is 'qsgd' here, got 'topk'",
        ),
        ("another key", "`key` must be that of a handle .* got `other`: it has model, wiretune"),
        ("a rank is missing", "`states` must be of all 2 ranks, and `rank-1` is missing"),
        ("another word", "`residuals` must be 'mean' or 'drop', got 'sum'"),
        ("trained", "`inherit` must come before the first step"),
        ("half", "`states` must be of the same exchange and model"),
        ("as it was", "True"),
    ],
)
def test_what_cannot_be_inherited_is_refused_and_changes_nothing(three_ranks: Reports, case: str, message: str):
    for rank in three_ranks["inherited"]:
        assert re.search(message, rank["refused"][case])
