"""The optimizers behind one face: rates with warm-up, complete state, and the iterate to evaluate."""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from schedulefree import AdamWScheduleFree, SGDScheduleFree
from torch import Tensor, nn
from torch.nn import Parameter

from trainers.exchange.step_result import is_finite
from trainers.methods.optimizer.lars import Lars
from trainers.methods.optimizer.muon import MuonWithAdamW, embeddings
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
from trainers.segment import Segment
from trainers.spec.ranges import first
from trainers.workload import Workload, WorkloadError

Group = dict[str, Any]  # a torch parameter group
#: Averages of a parameter's gradients, and the number of steps that corrects them.
MOMENTS = ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")
#: Options of groups that a segment may change.
OPTIONS = ("weight_decay", "nesterov", "momentum", "betas")
#: Which torch's fused AdamW rounds as its plain one does, but for the last bit.
FUSED_DTYPES = (torch.float32, torch.float64)
NOTHING_TRAINED = "no parameter is trained: all are frozen, or in no parameter group"
#: Of parameters whose rates are the optimizer's.
NO_FACTORS: Mapping[Parameter, float] = {}

log = logging.getLogger("wiretune.optimizers")


class Optimizer:
    """Steps parameters by the gradients in their `.grad`. Mutable: parameters, state tensors, scalars.

    Of our own kinds, all state tensors exist from the start, so that a snapshot taken before the first step is
    complete; a user's optimizer makes its own at its first step, and `fit` unmakes them.
    """

    def __init__(
        self,
        config: OptimizerConfig,
        optimizer: torch.optim.Optimizer,
        names: Mapping[Parameter, str],
        *,
        brought: Sequence[Mapping[str, Any]],
        reorders: bool = False,
    ) -> None:
        self.config = config
        self._optimizer = optimizer
        self.brought = brought  # options that the workload gave each group
        self.reorders = reorders  # whether the groups have the parameters in another order than `names`
        self._scales: list[Any] = [group.get("lr") for group in self._groups]  # None: a script's optimizer sets its own
        changeable = () if isinstance(config, OwnOptimizerConfig) else OPTIONS  # a script's own are its own matter
        self._built = [{name: group[name] for name in changeable if name in group} for group in self._groups]
        self.parameters = {name: parameter for parameter, name in names.items()}
        self._constants = {place: value.clone() for place, value in self._group_tensors()}
        self._given = {name for group in self._groups for name in group}  # options from before the first step

    @property
    def _groups(self) -> list[Group]:
        return self._optimizer.param_groups  # others once a script has loaded its optimizer's state

    def set_learning_rate(
        self, learning_rate: float, step: int, factors: Mapping[Parameter, float] = NO_FACTORS
    ) -> float:
        """Use `learning_rate` for step number `step` (from 0), times the warm-up's ramp and each group's own rate.

        `factors` multiply the rates of some parameters more, each of which has a group of its own. Returns the rate
        with the ramp, without the groups' own rates.
        """
        warmup = self.config.warmup_steps
        ramp = min(1.0, (step + 1) / warmup) if warmup else 1.0
        for group, scale in zip(self._groups, self._scales, strict=True):
            group["lr"] = learning_rate * ramp * scale
            if factors:
                group["lr"] *= factors.get(group["params"][0], 1.0)
        return learning_rate * ramp

    def rates(self) -> list[tuple[float, float]]:
        """Return the learning rate and the weight decay in force, of each of the `parameters`."""
        of_each = {each: (group["lr"], group["weight_decay"]) for group in self._groups for each in group["params"]}
        return [of_each[each] for each in self.parameters.values()]

    def set_options(self, segment: Segment) -> None:
        """Use the segment's momentum, weight decay and nesterov from the next step on; the rest is as it was built.

        A parameter group for which the workload gave an option keeps its own.
        """
        for group, built, brought in zip(self._groups, self._built, self.brought, strict=True):
            options: Group = {"weight_decay": segment.weight_decay, "nesterov": segment.nesterov}
            if segment.momentum is not None and "betas" in group:
                options["betas"] = (segment.momentum, group["betas"][1])
            else:
                options["momentum"] = segment.momentum
            given = {name: value for name, value in options.items() if value is not None}
            group |= {name: value for name, value in (built | given).items() if name not in brought}

    def step(self, loss: float, *, clipped: Tensor | float = 1.0) -> None:
        """Apply one update. The gradients are used as scratch.

        `loss` is the one whose gradients they are, a mean over the ranks as they are, and `clipped` the factor by which
        these were clipped. ScheduleFree+ alone asks for both.
        """
        if isinstance(self._optimizer, ScheduleFreePlus):
            self._optimizer.step(lambda: loss, clipped=clipped)
        else:
            self._optimizer.step()

    def forget_lost(self) -> None:
        """Begin anew what is not finite of the state: it would stay so for ever.

        With it begins what makes no sense without it: moments by the step that corrects them, and in Schedule-Free,
        where one number of steps corrects those of a whole group, all of these.
        """
        for group in self._groups:
            states = [self._optimizer.state.get(parameter, {}) for parameter in group["params"]]
            lost = [state for state in states if any(map(_is_lost, state.values()))]
            if isinstance(self._optimizer, AdamWScheduleFree | ScheduleFreePlus):
                numbers = [name for name, value in group.items() if _is_number(value) and not math.isfinite(value)]
                if lost or numbers:
                    group |= dict.fromkeys(numbers, 0.0) | {"k": 0}
                    lost = states
            for state in lost:
                _begin_anew(state)

    def tensors(self) -> dict[str, Tensor]:
        """Return the live state tensors by name; a step updates them in place.

        Raises WorkloadError if a user's optimizer keeps anything but tensors and numbers, or keeps them elsewhere than
        under a parameter.
        """
        if isinstance(self.config, OwnOptimizerConfig):
            self._check_places()
        for name, value in self._state():
            if not (value is None or isinstance(value, Tensor | str) or _is_number(value)):
                raise WorkloadError(
                    f"{type(self._optimizer).__name__} keeps a {type(value).__name__} as `{name}`, which cannot be put "
                    "back when training is rewound; tensors and numbers can"
                )
        return {name: value for name, value in self._state() if isinstance(value, Tensor)}

    def _check_places(self) -> None:
        """Raise WorkloadError for state of a user's optimizer that lies where nobody puts it back."""
        elsewhere = [f"`state[{key!r}]`" for key in self._optimizer.state if not isinstance(key, Tensor)]
        for place, value in self._group_tensors():
            known = self._constants.get(place)
            if known is None or not torch.equal(known, value):
                elsewhere.append(f"the tensor `{place[1]}` of parameter group {place[0]}")
        if elsewhere:
            raise WorkloadError(
                f"{type(self._optimizer).__name__} keeps {elsewhere[0]}, which cannot be put back when training is "
                "rewound; what is kept under a parameter, `state[parameter]`, can, and so can numbers in a group"
            )

    def _group_tensors(self) -> Iterable[tuple[tuple[int, str], Tensor]]:
        """Return the tensors among the groups' options, by group and name, but for rates, which each step sets."""
        for index, group in enumerate(self._groups):
            for name, value in group.items():
                if isinstance(value, Tensor) and name not in ("lr", "initial_lr"):  # the second is a scheduler's
                    yield (index, name), value

    def fit(self, tensors: Mapping[str, Tensor]) -> None:
        """Have a user's optimizer hold state tensors of just these names and shapes; their values follow."""
        if not isinstance(self.config, OwnOptimizerConfig) or tensors.keys() == self.tensors().keys():
            return
        for parameter in self.parameters.values():
            self._optimizer.state.pop(parameter, None)
        # torch keeps the step counts of these groups beside the parameters, and of others on the host
        groups = [group for group in self._groups if group.get("fused") or group.get("capturable")]
        counted_beside = {parameter for group in groups for parameter in group["params"]}
        for name, tensor in tensors.items():
            owner, _, key = name.rpartition(".")
            if owner not in self.parameters:
                continue
            parameter = self.parameters[owner]
            device = parameter.device if tensor.ndim or parameter in counted_beside else tensor.device
            self._optimizer.state[parameter][key] = torch.empty_like(tensor, device=device)

    def scalars(self) -> dict[str, Any]:
        """Return the numbers outside tensors, JSON-compatible: of each group, and of each parameter's state."""
        groups = [
            {key: value for key, value in group.items() if _is_number(value) and key != "fused"}  # the device's matter
            for group in self._groups
        ]
        return {"groups": groups, "state": {name: value for name, value in self._state() if _is_number(value)}}

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        for group, saved in zip(self._groups, scalars["groups"], strict=True):
            for name in [name for name, value in group.items() if _is_number(value)]:
                if name not in saved and name not in self._given and name != "initial_lr":  # made since then
                    del group[name]
            group.update(saved)
        for name, value in list(self._state()):
            if _is_number(value) and name not in scalars["state"]:  # made since then
                owner, _, key = name.rpartition(".")
                del self._optimizer.state[self.parameters[owner]][key]
        for name, value in scalars["state"].items():
            owner, _, key = name.rpartition(".")
            self._optimizer.state[self.parameters[owner]][key] = value

    def _state(self) -> Iterable[tuple[str, Any]]:
        for name, parameter in self.parameters.items():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                yield f"{name}.{key}", value

    @property
    def averages(self) -> bool:
        """True where another iterate is evaluated than is trained."""
        return any(_interpolation(self.config, group) is not None for group in self._groups)

    def iterate(self) -> list[Tensor]:
        """Return the live tensors that ranks with different ones must average to agree.

        These are the parameters and, for Schedule-Free, whose update is linear in both, z behind them. Moments and
        momenta are each rank's own.
        """
        states = [self._optimizer.state[parameter] for parameter in self.parameters.values()] if self.averages else []
        return [*self.parameters.values(), *(state["z"] for state in states)]

    @torch.no_grad()
    def evaluated(self) -> dict[str, Tensor]:
        """Return the parameters to evaluate and to export, by name.

        For Schedule-Free these are the average x in new tensors, recovered from the training point
        y = (1 - beta) z + beta x (Defazio et al., 2024, eq. 1); otherwise the live parameters themselves.
        """
        # The package's eval() and train() would move the parameters there and back, and lose bits on the way.
        return {
            name: torch.lerp(parameter.detach(), self._optimizer.state[parameter]["z"], 1 - 1 / beta)
            if (beta := _interpolation(self.config, group)) is not None
            else parameter.detach()
            for group in self._groups
            for name, parameter in self._named(group)
        }

    def _named(self, group: Group) -> Iterable[tuple[str, Parameter]]:
        members = set(group["params"])
        return [(name, parameter) for name, parameter in self.parameters.items() if parameter in members]


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
        if not (_is_number(rate) and 0 < rate < float("inf")):
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
        if _interpolation(config, group) == 0:
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


def _interpolation(config: OptimizerConfig, group: Group) -> float | None:
    match config:
        case ScheduleFreeSgdConfig():
            return float(group["momentum"])
        case ScheduleFreeAdamWConfig():
            return float(group["betas"][0])
        case ScheduleFreePlusConfig():
            return float(group["interpolation"])
        case _:
            return None


def _is_lost(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and not is_finite(value)


def _begin_anew(state: dict[str, Any]) -> None:
    """Put what is not finite of a parameter's state, and all `MOMENTS`, back to 0."""
    for name, value in state.items():
        if isinstance(value, Tensor) and (name in MOMENTS or _is_lost(value)):
            value.zero_()
        elif name in MOMENTS and _is_number(value):
            state[name] = 0


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float)
