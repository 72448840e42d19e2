"""Attach to a training loop, and let a controller choose its learning rate and every value given as a range."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypedDict, Unpack, overload

import torch
from torch import nn

from search.config import BoConfig, Budget, ControllerConfig, ScheduleConfig, StagedConfig, range_conflict
from search.schedule import OF_OTHERS
from search.schedule_file import RecordedSchedule, ScheduleFile
from trainers.methods.replica_config import ReplicaConfig
from trainers.own_loop import attach as own_loop
from trainers.own_loop.attach import Attached, StepValues
from trainers.own_loop.attachable import Exchanging, Syncing
from trainers.own_loop.ddp import PerNode
from trainers.own_loop.together import Optimizers, listed
from trainers.spec.ranges import Config
from trainers.spec.refusals import checked
from wiretune.tuner import Tuner

#: A job's controller, as its configuration or as its fields.
Controlling = ControllerConfig | Mapping[str, Any]
#: Packages whose optimizers wrap another one, and keep no state of their own for it.
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
def attach(model: nn.Module, optimizer: Optimizers, **how: Unpack[How]) -> Attached: ...


@overload
def attach(
    model: nn.Module,
    optimizer: Optimizers,
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
    optimizer: Optimizers,
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

    `exchange`, `sync`, `per_node`, `scale` and `seed` are the keywords of `trainers.own_loop.attach`. With `cser` or
    `liec_sgd` the loop must not clip gradients: ranks would drift apart unseen.

    With `controller`, the search chooses the learning rate, and each value that is a range in `exchange` or `sync`. The
    optimizer's rate is the guess. The loop reports its losses to the `Tuner` that is returned.

    Args:
        model: as `trainers.own_loop.attach` takes it.
        optimizer: one, or a list of those that train `model` together; with a controller, none that wraps another.
        controller: as in a job; None: no search.
        steps: the budget in optimizer steps, search included. If it is the only cap, the exchange's level is not
            searched: it is the densest of its pair.
        seconds: the budget in seconds from now on. Whichever cap is reached first ends the run.
        bytes: the budget in bytes sent by a node on average.
        batch_size: samples that a rank trains in a step. If it is given, probes on small batches are longer.
        pretrained: whether the model was trained before. If so, the search does not start at the rate that is usual
            for a new model, nor assume that the model has learned nothing yet.
        how: the keywords of `trainers.own_loop.attach`.

    Raises:
        ValueError: for what `trainers.own_loop.attach` refuses; a controller without a budget, or a budget without a
            controller; a controller that a job would refuse; a controller with an optimizer that wraps another one; or
            what only a job does: `transfer`, and searched values of a schedule such as the momentum.
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
    for each in listed(optimizer):
        check_optimizer(each)
    handle = own_loop.attach(model, optimizer, check_ranges=partial(check_ranges, config), **how)
    seed = how.get("seed", 0)
    try:
        return Tuner(handle, config, budget=budget, seed=seed, batch_size=batch_size, pretrained=pretrained)
    except ValueError:
        handle.detach()  # the caller never gets it
        raise


def _with_warm_up(controller: Controlling) -> Controlling:
    """Keep the warm-up of a schedule that is given as fields: a job's optimizer has its own, a loop's has none."""
    if not isinstance(controller, Mapping) or not isinstance(controller.get("schedule"), Mapping):
        return controller
    schedule = checked(RecordedSchedule, controller["schedule"], at="controller.schedule")
    return {**controller, "schedule": schedule}


def check_controller(controller: ControllerConfig) -> None:
    """Raise ValueError for settings of `controller` that only a job can follow."""
    if isinstance(controller, BoConfig) and controller.transfer is not None:
        raise ValueError("`controller.transfer` learns from past jobs of a service, and a loop has none: leave it out")
    if isinstance(controller, StagedConfig) and controller.promote and "promote" in controller.model_fields_set:
        raise ValueError(
            "`controller.promote` must be false or left out in a loop, got true: only a job holds the end of a probe, "
            "and goes on from there. A dumped configuration names it, too: drop it"
        )
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
    """Raise ValueError for an optimizer that wraps another one: a probe would not restore the state of both.

    Allowed are the wrappers of `FRAMEWORKS`, which keep no state, and an optimizer that shares the other one's state.
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
    """Raise ValueError for an entry of a schedule whose level or other values do not fit the exchange and optimizer."""
    exchange = config.exchange
    for number, entry in enumerate(schedule.entries):
        if wrong := config.setting_conflict(entry.values, optimizer=config.optimizer.kind):
            raise ValueError(f"`controller.schedule.entries[{number}].values` do not fit: {wrong}")
        if entry.level is not None and exchange.level is not None and (wrong := exchange.level_conflict(entry.level)):
            raise ValueError(
                f"`controller.schedule.entries[{number}].level` is the exchange's `{exchange.level_name}` here and "
                f"{wrong}, got {entry.level:g}"
            )
