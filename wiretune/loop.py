"""Attach to a training loop, and let a controller choose its learning rate, and what else may be a range."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypedDict, Unpack, overload

import torch
from torch import nn

from search.config import BoConfig, Budget, ControllerConfig, ScheduleConfig, range_conflict
from search.schedule import OF_OTHERS
from search.schedule_file import RecordedSchedule, ScheduleFile
from trainers.methods.replica_config import ReplicaConfig
from trainers.own_loop import attach as own_loop
from trainers.own_loop.attach import Attached, StepValues
from trainers.own_loop.attachable import Exchanging, Syncing
from trainers.own_loop.ddp import PerNode
from trainers.spec.ranges import Config
from trainers.spec.refusals import checked
from wiretune.tuner import Tuner

#: A job's controller, as its configuration or as its fields.
Controlling = ControllerConfig | Mapping[str, Any]
#: Packages whose optimizers call another one, and keep nothing for it.
FRAMEWORKS = {"accelerate", "lightning", "lightning_fabric", "pytorch_lightning"}


class _Controlled(Config):
    controller: ControllerConfig


class How(TypedDict, total=False):
    """The keywords of `trainers.own_loop.attach.attach`."""

    exchange: Exchanging
    sync: Syncing
    per_node: PerNode
    scale: Callable[[], float]
    seed: int


@overload
def attach(model: nn.Module, optimizer: torch.optim.Optimizer, **how: Unpack[How]) -> Attached: ...


@overload
def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    controller: Controlling,
    steps: int | None = None,
    seconds: float | None = None,
    bytes: int | None = None,
    batch_size: int | None = None,
    pretrained: bool = False,
    **how: Unpack[How],
) -> Tuner: ...


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    controller: Controlling | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    bytes: int | None = None,
    batch_size: int | None = None,
    pretrained: bool = False,
    **how: Unpack[How],
) -> Attached | Tuner:
    """Have the ranks that train `model` by `optimizer` exchange gradients, or average parameters, as a job would.

    The keywords are those of `trainers.own_loop.attach`: `exchange` and `sync`, as in a job, `per_node`, `scale`, and
    `seed`. With `cser` or `liec_sgd` the loop must not clip gradients: ranks would drift apart unseen.
    With `controller`, as in a job, the learning rate is searched too, and every range in `exchange` and `sync`; in
    `steps` alone the exchange's level is the densest of its pair. The optimizer's rate is the guess. The run is of so
    many optimizer `steps`, `seconds` from now on, or `bytes` sent by a node on average, search included, whichever is
    reached first. `batch_size` is the number of samples that a rank trains in a step: if it is told, probes on small
    batches are longer. `pretrained` says that the model was trained before: the search does not start at the rate that
    is usual for a new model, nor does it take the model for one that learns nothing yet. The loop reports its losses to
    the `Tuner` that is returned.

    Raises ValueError for what `trainers.own_loop.attach` refuses, for a controller without a budget, for a budget
    without a controller, for what a job would refuse of a controller, for an optimizer around another one with a
    controller, and for what only a job does: `transfer`, and searched values of a schedule such as the momentum.
    """
    if controller is None:
        told = {"steps": steps, "seconds": seconds, "bytes": bytes, "batch_size": batch_size}
        told |= {"pretrained": True} if pretrained else {}
        for name in (name for name, value in told.items() if value is not None):
            what = "the budget of a controller" if name in Budget.model_fields else "for a controller"
            raise ValueError(f"`{name}` is {what}: give `controller={{'kind': 'bo'}}`, or leave it out")
        return own_loop.attach(model, optimizer, **how)
    budget = checked(Budget, {"steps": steps, "seconds": seconds, "bytes": bytes})
    config = checked(_Controlled, {"controller": _with_warm_up(controller)}).controller
    check_controller(config)
    check_optimizer(optimizer)
    handle = own_loop.attach(model, optimizer, check_ranges=partial(check_ranges, config), **how)
    seed = how.get("seed", 0)
    try:
        return Tuner(handle, config, budget=budget, seed=seed, batch_size=batch_size, pretrained=pretrained)
    except ValueError:
        handle.detach()  # nobody else has it
        raise


def _with_warm_up(controller: Controlling) -> Controlling:
    """Have a schedule that is given as fields keep its warm-up: a job's optimizer has its own, a loop's has none."""
    if not isinstance(controller, Mapping) or not isinstance(controller.get("schedule"), Mapping):
        return controller
    schedule = checked(RecordedSchedule, controller["schedule"], at="controller.schedule")
    return {**controller, "schedule": schedule}


def check_controller(controller: ControllerConfig) -> None:
    """Raise ValueError for what a job does by `controller` and nothing in a loop does."""
    if isinstance(controller, BoConfig) and controller.transfer is not None:
        raise ValueError("`controller.transfer` learns from past jobs of a service, and a loop has none: leave it out")
    if not isinstance(controller, ScheduleConfig):
        return
    for number, entry in enumerate(controller.schedule.entries):
        if ignored := sorted(entry.values.keys() - {*StepValues._fields, "optimizer"}):  # which is that of all entries
            remedy = (
                "train by it as a job"
                if ignored[0] in OF_OTHERS
                else "follow the schedule by `wiretune.Schedule.scheduler`, which sets momentum, weight decay and "
                "nesterov, and by `batch_size_at` and `option_at`"
            )
            raise ValueError(
                f"`controller.schedule.entries[{number}].values` sets `{ignored[0]}`, and a controller in a loop does "
                f"not: {remedy}"
            )


def check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Raise ValueError for an optimizer around another one: what either keeps would not all be put back after a probe.

    The wrappers of `FRAMEWORKS` keep nothing, nor does an optimizer with the state of the other one.
    """
    frameworks = {each.__module__.partition(".")[0] for each in type(optimizer).__mro__} & FRAMEWORKS
    for name, inner in vars(optimizer).items():
        if not isinstance(inner, torch.optim.Optimizer):
            continue
        if frameworks:
            check_optimizer(inner)
        elif inner.state is not getattr(optimizer, "state", None):
            raise ValueError(
                f"`optimizer` must hold its whole state to be put back after a probe, got {type(optimizer).__name__}, "
                f"whose `{name}` is {type(inner).__name__}: give a controller an optimizer that wraps no other"
            )


def check_ranges(controller: ControllerConfig, config: ReplicaConfig) -> None:
    """Raise ValueError, as a job would, for a range that `controller` does not search, or a schedule that misfits."""
    if isinstance(controller, ScheduleConfig):
        check_schedule(controller.schedule, config)
    for number, each in enumerate(config.ranges(), start=1):
        if reason := range_conflict(controller, each.name, number):
            raise ValueError(f"`{each.field}`: {reason}: give one number, got {json.dumps(each.pair)}")


def check_schedule(schedule: ScheduleFile, config: ReplicaConfig) -> None:
    """Raise ValueError for an entry of a schedule that sets what is no level of the exchange, or what does not fit."""
    exchange = config.exchange
    for number, entry in enumerate(schedule.entries):
        if wrong := config.setting_conflict(entry.values, optimizer=config.optimizer.kind):
            raise ValueError(f"`controller.schedule.entries[{number}].values` do not fit: {wrong}")
        if entry.level is not None and exchange.level is not None and (wrong := exchange.level_conflict(entry.level)):
            raise ValueError(
                f"`controller.schedule.entries[{number}].level` is the exchange's `{exchange.level_name}` here and "
                f"{wrong}, got {entry.level:g}"
            )
