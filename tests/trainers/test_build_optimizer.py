"""The optimizer of a job in a user's own loop, which a learned schedule names."""

from typing import Any

import pytest
import torch
from torch import nn

from search.optimizer_traits import OPTIMIZER_TRAITS
from trainers.methods.optimizer import optimizers
from trainers.own_loop.optimizer import _Described, build_optimizer
from trainers.spec.workloads import DigitsMlp
from trainers.workloads.digits import Digits

KINDS = sorted(OPTIMIZER_TRAITS.keys() - {"own"})
RATE = 0.01


def made() -> nn.Module:
    """Return a model with a table, which Muon takes for no matrix, a kernel, a matrix and vectors."""
    torch.manual_seed(0)
    return nn.ModuleList([nn.Embedding(6, 4), nn.Conv2d(1, 2, 3), nn.Linear(4, 3), nn.LayerNorm(3)])


def give_gradients(model: nn.Module, step: int) -> None:
    torch.manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)


@pytest.mark.parametrize("kind", KINDS)
def test_it_steps_as_a_jobs_does_bit_for_bit(kind: str) -> None:
    fields = {"kind": kind, "learning_rate": RATE, "weight_decay": 0.1}
    in_job, in_loop = made(), made()
    theirs = optimizers.build(_Described(optimizer=fields).optimizer, Digits(DigitsMlp()), in_job)
    ours = build_optimizer(in_loop, fields)

    for step in range(3):
        give_gradients(in_job, step)
        give_gradients(in_loop, step)
        theirs.set_learning_rate(RATE, step)
        theirs.step(1.0)
        ours.step(lambda: 1.0)

    assert all(map(torch.equal, in_job.parameters(), in_loop.parameters()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_alone_has_the_knobs_of_a_job_that_names_the_kind_alone(kind: str) -> None:
    alone, described = (build_optimizer(made(), each) for each in (kind, {"kind": kind}))

    assert [_options(group) for group in alone.param_groups] == [_options(group) for group in described.param_groups]
    assert alone.param_groups[0]["lr"] == _Described(optimizer={"kind": kind}).optimizer.learning_rate


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def test_rates_of_groups_multiply_the_learning_rate() -> None:
    model = made()
    groups = [{"params": list(model[0].parameters()), "lr": 0.1}, {"params": list(model[2].parameters())}]

    optimizer = build_optimizer(model, {"kind": "sgd", "learning_rate": 0.5}, groups=groups)

    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.5]
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 2]


def test_of_a_range_it_has_the_first_value() -> None:
    optimizer = build_optimizer(made(), {"kind": "sgd", "momentum": [0.5, 0.9]})

    assert optimizer.param_groups[0]["momentum"] == 0.5


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ("own", "got `own`, which is your workload's"),
        ("auto", "`optimizer"),
        ("nadam", "`optimizer"),
        ({"kind": "sgd", "momentun": 0.9}, "momentun.*momentum"),
        ({"kind": "muon", "momentum": 1.5}, "`optimizer.momentum`"),
    ],
)
def test_what_a_job_refuses_is_refused_and_so_is_a_workloads_own(optimizer: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_optimizer(made(), optimizer)


@pytest.mark.parametrize(("groups", "message"), [([], "no parameter is trained"), ([{"lr": -1.0}], "must be > 0, got")])
def test_groups_that_do_not_fit_are_refused(groups: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValueError, match=f"`groups`: .*{message}"):
        build_optimizer(made(), "sgd", groups=groups)
