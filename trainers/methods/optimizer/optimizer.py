"""An optimizer of any kind behind one face: rates with warm-up, complete state, and the iterate to evaluate."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from schedulefree import AdamWScheduleFree
from torch import Tensor
from torch.nn import Parameter

from trainers.exchange.step_result import is_finite
from trainers.methods.optimizer.schedulefree_plus import ScheduleFreePlus
from trainers.methods.optimizer.spec import (
    OptimizerConfig,
    OwnOptimizerConfig,
    ScheduleFreeAdamWConfig,
    ScheduleFreePlusConfig,
    ScheduleFreeSgdConfig,
)
from trainers.segment import Segment
from trainers.workload import WorkloadError

Group = dict[str, Any]  # a torch parameter group
#: Averages of a parameter's gradients, and the number of steps that corrects them.
MOMENTS = ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")
#: Options of groups that a segment may change.
OPTIONS = ("weight_decay", "nesterov", "momentum", "betas")
#: Of parameters whose rates are the optimizer's.
NO_FACTORS: Mapping[Parameter, float] = {}


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
                numbers = [name for name, value in group.items() if is_number(value) and not math.isfinite(value)]
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
            if not (value is None or isinstance(value, Tensor | str) or is_number(value)):
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
            {key: value for key, value in group.items() if is_number(value) and key != "fused"}  # the device's matter
            for group in self._groups
        ]
        return {"groups": groups, "state": {name: value for name, value in self._state() if is_number(value)}}

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        for group, saved in zip(self._groups, scalars["groups"], strict=True):
            for name in [name for name, value in group.items() if is_number(value)]:
                if name not in saved and name not in self._given and name != "initial_lr":  # made since then
                    del group[name]
            group.update(saved)
        for name, value in list(self._state()):
            if is_number(value) and name not in scalars["state"]:  # made since then
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
        return any(interpolation(self.config, group) is not None for group in self._groups)

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
            if (beta := interpolation(self.config, group)) is not None
            else parameter.detach()
            for group in self._groups
            for name, parameter in self._named(group)
        }

    def _named(self, group: Group) -> Iterable[tuple[str, Parameter]]:
        members = set(group["params"])
        return [(name, parameter) for name, parameter in self.parameters.items() if parameter in members]


def interpolation(config: OptimizerConfig, group: Group) -> float | None:
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
        elif name in MOMENTS and is_number(value):
            state[name] = 0


def is_number(value: object) -> bool:
    return isinstance(value, bool | int | float)
