"""Attach to a training loop, and let a controller choose its learning rate."""

from collections.abc import Callable, Mapping
from typing import Any, TypedDict, Unpack, overload

import torch
from pydantic import TypeAdapter
from torch import nn

import trainers.attach
from search.config import ControllerConfig
from trainers.attach import Attached, Exchanging, Syncing
from trainers.exchange.ddp import PerNode
from wiretune.tuner import Tuner

#: A job's controller, as its configuration or as its fields.
Controlling = ControllerConfig | Mapping[str, Any]


class How(TypedDict, total=False):
    """The keywords of `trainers.attach.attach`."""

    exchange: Exchanging
    sync: Syncing
    per_node: PerNode
    scale: Callable[[], float]
    seed: int


@overload
def attach(model: nn.Module, optimizer: torch.optim.Optimizer, **how: Unpack[How]) -> Attached: ...


@overload
def attach(
    model: nn.Module, optimizer: torch.optim.Optimizer, *, controller: Controlling, steps: int, **how: Unpack[How]
) -> Tuner: ...


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    controller: Controlling | None = None,
    steps: int | None = None,
    **how: Unpack[How],
) -> Attached | Tuner:
    """Have the ranks that train `model` by `optimizer` exchange gradients, or average parameters, as a job would.

    The keywords are those of `trainers.attach.attach`: `exchange` and `sync`, as in a job; `per_node`, `scale`, `seed`.
    With `controller`, as in a job, the learning rate is searched too, in a run of `steps` optimizer steps, and the loop
    reports its losses to the `Tuner` that is returned. The optimizer's rate is the guess.

    Raises ValueError for what `trainers.attach.attach` refuses, for a controller without `steps`, and for what a job
    would refuse of a controller.
    """
    handle = trainers.attach.attach(model, optimizer, **how)
    if controller is None:
        return handle
    if steps is None:
        raise ValueError("`steps` must be the number of optimizer steps of the run, search included, got None")
    config: ControllerConfig = TypeAdapter(ControllerConfig).validate_python(controller)
    return Tuner(handle, config, steps=steps, seed=how.get("seed", 0))
