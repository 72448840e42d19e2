"""Builds optimizers, with all their state from the start."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from schedulefree import AdamWScheduleFree, SGDScheduleFree
from torch import Tensor, nn
from torch.nn import Parameter

from trainers.methods.optimizer.lars import Lars
from trainers.methods.optimizer.muon import MuonWithAdamW, embeddings
from trainers.methods.optimizer.optimizer import Group, Optimizer, interpolation, is_number
from trainers.methods.optimizer.schedulefree_plus import ScheduleFreePlus
from trainers.methods.optimizer.spec import (
    AdamWConfig,
    ContenderConfig,
    FromExchangeConfig,
    LarsConfig,
    MuonConfig,
    OptimizerConfig,
    OwnOptimizerConfig,
    ScheduleFreeAdamWConfig,
    ScheduleFreePlusConfig,
    ScheduleFreeSgdConfig,
    SgdConfig,
)
from trainers.spec.ranges import first
from trainers.workload import Workload, WorkloadError

#: Which torch's fused AdamW rounds as its plain one does, but for the last bit.
FUSED_DTYPES = (torch.float32, torch.float64)
NOTHING_TRAINED = "no parameter is trained: all are frozen, or in no parameter group"

log = logging.getLogger("wiretune.optimizers")


def build(config: OptimizerConfig, workload: Workload, model: nn.Module, *, apart: bool = False) -> Optimizer:
    """Return the optimizer of `config` for what is trained of `model`; freezes the rest of it.

    With `apart` each parameter has a group of its own, unless the optimizer is the workload's. Raises WorkloadError if
    the workload's groups, or its own optimizer, cannot be used.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    if isinstance(config, OwnOptimizerConfig):
        optimizer = _checked(workload.optimizer(model))
        options = _options(optimizer.param_groups)
    else:
        groups = _groups(workload.parameter_groups(model), apart=apart)
        if not groups:
            raise WorkloadError(NOTHING_TRAINED)
        options = _options(groups)  # before torch adds the defaults to them
        optimizer = _prepared(config, groups, model)
    brought = [options[group["params"][0]] if group["params"] else {} for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter not in names:
                shape = tuple(parameter.shape)
                raise WorkloadError(f"a parameter of shape {shape} is in a parameter group and not in the model")
        group["params"] = [*filter(_is_trained, group["params"])]
    if isinstance(config, OwnOptimizerConfig):
        _unfuse(optimizer.param_groups)
    trained = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    if not trained:
        raise WorkloadError(NOTHING_TRAINED)
    for parameter in names.keys() - trained:
        parameter.requires_grad_(False)
    # In the model's order, as backward fills buckets from its end, however groups divide it.
    ordered = {parameter: name for parameter, name in names.items() if parameter in trained}
    in_groups = [names[parameter] for parameter in options if parameter in trained]
    return Optimizer(config, optimizer, ordered, brought=brought, reorders=in_groups != [*ordered.values()])


def build_alone(
    config: ContenderConfig | FromExchangeConfig, model: nn.Module, groups: Sequence[Mapping[str, Any]]
) -> torch.optim.Optimizer:
    """Return the torch optimizer of `config` for `groups` of the parameters of `model`, at its learning rate.

    Raises WorkloadError for groups that cannot be used.
    """
    listed = _groups([dict(group) for group in groups], apart=False)
    if not listed:
        raise WorkloadError(NOTHING_TRAINED)
    for group in listed:
        group["lr"] *= config.learning_rate
    return _prepared(config, listed, model)


def _options(groups: Sequence[Group]) -> dict[Parameter, Group]:
    """Return for each parameter the options of its group, group by group."""
    return {
        parameter: {name: value for name, value in group.items() if name != "params"}
        for group in groups
        for parameter in group["params"]
    }


def _groups(given: Sequence[Group], *, apart: bool) -> list[Group]:
    """Return the workload's groups, or one for each of their parameters, with their rates as multipliers."""
    groups: list[Group] = [{"lr": 1.0} | group | {"params": _listed(group.get("params", ()))} for group in given]
    for index, group in enumerate(groups):
        rate: Any = group["lr"]
        if not (is_number(rate) and 0 < rate < float("inf")):
            raise WorkloadError(
                f"`lr` of parameter group {index} multiplies the learning rate: it must be > 0, got {rate}"
            )
    if apart:
        return [group | {"params": [each]} for group in groups for each in group["params"] if _is_trained(each)]
    return [group for group in groups if group["params"]]


def _listed(parameters: Any) -> list[Parameter]:
    """Return a group's parameters, which torch also takes alone, or as (name, parameter)."""
    if isinstance(parameters, Tensor):
        return [parameters]  # type: ignore[list-item]
    return [each[1] if isinstance(each, tuple) else each for each in parameters]


def _checked(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise WorkloadError(f"`optimizer` must return a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise WorkloadError("`optimizer` returned LBFGS, which evaluates the loss several times a step; take another")
    if callable(getattr(optimizer, "eval", None)):
        raise WorkloadError(
            f"`optimizer` returned {type(optimizer).__name__}, which evaluates other weights than it trains; "
            "for Schedule-Free take `optimizer: {kind: schedulefree_sgd}` or `schedulefree_adamw`"
        )
    for index, group in enumerate(optimizer.param_groups):
        if group.get("lr") is None:
            raise WorkloadError(
                f"`optimizer` returned {type(optimizer).__name__}, whose parameter group {index} has no `lr` for the "
                "learning rate to multiply: give it one (Adafactor takes it with `relative_step=False`)"
            )
    return optimizer


def _prepared(
    config: ContenderConfig | FromExchangeConfig, groups: list[Group], model: nn.Module
) -> torch.optim.Optimizer:
    """Return one of our own kinds, with all its state made."""
    optimizer = _of_kind(config, groups, model)
    for group in optimizer.param_groups:
        if unknown := group.keys() - optimizer.defaults.keys() - {"params"}:
            raise WorkloadError(f"a parameter group has options that {config.kind} does not know: {sorted(unknown)}")
        if interpolation(config, group) == 0:
            raise WorkloadError(f"a parameter group has momentum 0, which {config.kind} cannot average with")
        for parameter in filter(_is_trained, group["params"]):  # state of a frozen base may fill the device
            optimizer.state[parameter].update(_initial_state(config, optimizer, group, parameter))
    return optimizer


def _of_kind(
    config: ContenderConfig | FromExchangeConfig, groups: list[Group], model: nn.Module
) -> torch.optim.Optimizer:
    """Return the optimizer; what is searched has the range's first value until a segment gives one."""
    decay = first(config.weight_decay)
    match config:
        case SgdConfig():
            return torch.optim.SGD(
                groups, momentum=first(config.momentum), nesterov=first(config.nesterov), weight_decay=decay
            )
        case FromExchangeConfig():
            # Without momentum its decay is decoupled: x <- x (1 - lr decay) - lr direction.
            return torch.optim.SGD(groups, weight_decay=decay)
        case LarsConfig():
            return Lars(groups, momentum=first(config.momentum), weight_decay=decay, trust=config.trust)
        case AdamWConfig():
            betas = first(config.betas[0]), config.betas[1]
            return torch.optim.AdamW(groups, betas=betas, weight_decay=decay, fused=_can_be_fused(groups))
        case MuonConfig():
            return MuonWithAdamW(
                groups,
                not_matrices=embeddings(model),
                momentum=config.momentum,
                betas=config.betas,
                weight_decay=decay,
                fused=_can_be_fused(groups),
            )
        case ScheduleFreePlusConfig():
            return ScheduleFreePlus(
                groups,
                betas=config.betas,
                interpolation=config.interpolation,
                l1_momentum=config.l1_momentum,
                weight_decay=decay,
            )
        case ScheduleFreeSgdConfig():
            optimizer: torch.optim.Optimizer = SGDScheduleFree(groups, momentum=config.momentum, weight_decay=decay)
        case ScheduleFreeAdamWConfig():
            optimizer = AdamWScheduleFree(groups, betas=config.betas, weight_decay=decay)
    for group in optimizer.param_groups:
        group["train_mode"] = True  # the package's train(), which has nothing to move yet
    return optimizer


def _can_be_fused(groups: Sequence[Group]) -> bool | None:
    """Return True where torch's fused AdamW steps all parameters right; None: what torch does by itself.

    On a processor it takes a half to a twelfth of the time. It walks through parameter and gradient as they lie in
    memory, so where their strides differ it is wrong, and says nothing.
    """
    parameters = [each for group in groups for each in group["params"] if _is_trained(each)]
    return all(each.is_cpu and each.is_contiguous() and each.dtype in FUSED_DTYPES for each in parameters) or None


def _unfuse(groups: Sequence[Group]) -> None:
    """Leave to torch how to step groups that a user wants fused, where that is wrong (see `_can_be_fused`)."""
    for index, group in enumerate(groups):
        if group.get("fused") and not all(each.is_contiguous() for each in group["params"]):
            group["fused"] = None
            log.warning("parameter group %d is stepped without `fused`: its gradients have other strides", index)


def _initial_state(
    config: OptimizerConfig, optimizer: torch.optim.Optimizer, group: Group, parameter: Parameter
) -> dict[str, Tensor]:
    """Return what `optimizer` itself would create at its first step."""
    zeros, start = torch.zeros_like(parameter), parameter.detach().clone()
    if isinstance(optimizer, MuonWithAdamW) and optimizer.steps_as_matrix(parameter):
        return {"momentum_buffer": zeros.flatten(1)}
    match config:
        case SgdConfig() | LarsConfig():
            return {"momentum_buffer": zeros} if group["momentum"] else {}
        case AdamWConfig() | MuonConfig():
            names = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if group["amsgrad"] else ("exp_avg", "exp_avg_sq")
            return {"step": torch.tensor(0.0)} | {name: torch.zeros_like(parameter) for name in names}
        case ScheduleFreeSgdConfig():
            return {"z": start}
        case ScheduleFreeAdamWConfig():
            return {"z": start, "exp_avg_sq": zeros}
        case ScheduleFreePlusConfig() | FromExchangeConfig() | OwnOptimizerConfig():
            return {}


def _is_trained(parameter: Tensor) -> bool:
    return parameter.requires_grad
