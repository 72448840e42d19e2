"""A rank's state in a run that a framework trains."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from wiretune import Tuner, attach
from wiretune.rank_state import RankState

LOCAL = {"kind": "local_sgd"}


def attached(model: nn.Module, sync: Mapping[str, Any] = LOCAL) -> RankState:
    optimizer = torch.optim.SGD(model["student"].parameters(), lr=0.1)
    return RankState(model, attach(model, optimizer, sync={"period": 100, **sync}))


def with_teacher() -> nn.Module:
    model = nn.ModuleDict({"student": nn.Linear(4, 1), "teacher": nn.Linear(4, 1)})
    model["teacher"].requires_grad_(False)
    return model


def test_a_frozen_teacher_that_differs_by_rank_is_taken_back_as_it_was(tmp_path: Path) -> None:
    model, place = with_teacher(), tmp_path / "part.pt"
    ranks = attached(model)
    own = {name: each.detach().clone() for name, each in model.named_parameters()}
    ranks.handle.means = lambda: {name: torch.zeros_like(each) for name, each in own.items()}  # type: ignore[method-assign]

    with ranks.handle.averaged():
        lent = {name: each.clone() for name, each in model.state_dict().items()}
        place.write_bytes(ranks.saved())
    resumed = with_teacher()
    resumed.load_state_dict(lent)
    attached(resumed).resume(str(place))

    assert not any(each.any() for each in lent.values())
    assert all(torch.equal(each, own[name]) for name, each in resumed.named_parameters())


@pytest.mark.parametrize(
    ("sync", "said"),
    [
        ({"kind": "diloco", "offload": True}, ""),
        ({"kind": "local_sgd"}, "`sync.kind` is 'local_sgd' here, got 'diloco'"),
    ],
)
def test_a_memory_is_lost_to_another_method_alone_and_a_warning_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sync: dict[str, Any], said: str
) -> None:
    model, place = with_teacher(), tmp_path / "part.pt"
    place.write_bytes(attached(model, {"kind": "diloco"}).saved())
    resumed = with_teacher()
    resumed.load_state_dict(model.state_dict())

    attached(resumed, sync).resume(str(place))

    assert ("lost its memory" in caplog.text) == bool(said) and said in caplog.text


def test_a_memory_is_saved_once_beside_a_search_and_goes_on_with_or_without_one(tmp_path: Path) -> None:
    place, how = tmp_path / "part.pt", {"exchange": {"kind": "topk", "density": 0.5}}
    controlled = how | {"controller": {"kind": "fixed"}, "steps": 5}
    model = with_teacher()
    optimizer = torch.optim.SGD(model["student"].parameters(), lr=0.1)
    tuner = attach(model, optimizer, **controlled)
    model["student"](torch.ones(1, 4)).sum().backward()
    optimizer.step()
    tuner.report(1.0)

    place.write_bytes(RankState(model, tuner.handle, tuner).saved())

    assert torch.load(place, weights_only=True).keys() == {"fingerprint", "own", "tuner"}
    for each in (how, controlled):
        other = with_teacher()
        other.load_state_dict(model.state_dict())
        begun = attach(other, torch.optim.SGD(other["student"].parameters(), lr=0.1), **each)
        searches = isinstance(begun, Tuner)
        handle = begun.handle if searches else begun
        RankState(other, handle, begun if searches else None).resume(str(place))
        assert str(handle.state_dict()) == str(tuner.handle.state_dict())


def test_a_part_of_a_model_that_has_other_frozen_parameters_is_left_where_it_is(tmp_path: Path) -> None:
    model, place = with_teacher(), tmp_path / "part.pt"
    ranks = attached(model)
    means = {name: torch.zeros_like(each) for name, each in model.named_parameters()}
    ranks.handle.means = lambda: means  # type: ignore[method-assign]
    with ranks.handle.averaged():
        place.write_bytes(ranks.saved())
    other = with_teacher()
    other.load_state_dict(means)
    other["teacher"] = nn.Linear(5, 1).requires_grad_(False)

    attached(other).resume(str(place))

    assert not other["student"].weight.any()
