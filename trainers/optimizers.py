"""The four optimizers behind one face: rate with warm-up, complete state, and the iterate to evaluate."""

from collections.abc import Mapping
from typing import Any

import torch
from schedulefree import AdamWScheduleFree, SGDScheduleFree
from torch import Tensor
from torch.nn import Parameter

from trainers.config import (
    AdamWConfig,
    OptimizerConfig,
    ScheduleFreeAdamWConfig,
    ScheduleFreeSgdConfig,
    SgdConfig,
)

#: State outside tensors: Schedule-Free counts its steps and sums its weights in the parameter group.
SCALARS = ("lr", "k", "weight_sum", "lr_max", "scheduled_lr", "train_mode")


class Optimizer:
    """Steps parameters by the gradients in their `.grad`. Mutable: parameters, state tensors, scalars.

    All state tensors exist from the start, so that a snapshot taken before the first step is complete.
    """

    def __init__(self, config: OptimizerConfig, parameters: Mapping[str, Parameter]) -> None:
        self.config = config
        self._parameters = dict(parameters)
        self._optimizer = _build(config, list(self._parameters.values()))
        self._group: dict[str, Any] = self._optimizer.param_groups[0]
        for parameter in self._parameters.values():
            self._optimizer.state[parameter].update(_initial_state(config, parameter))

    def set_learning_rate(self, learning_rate: float, step: int) -> None:
        """Use `learning_rate` for step number `step` (from 0), scaled by the warm-up's linear ramp."""
        warmup = self.config.warmup_steps
        self._group["lr"] = learning_rate * min(1.0, (step + 1) / warmup) if warmup else learning_rate

    def step(self) -> None:
        """Apply one update. The gradients are used as scratch."""
        self._optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        """Return the live state tensors by name; they are never replaced by others."""
        return {
            f"{name}.{key}": tensor
            for name, parameter in self._parameters.items()
            for key, tensor in self._optimizer.state[parameter].items()
        }

    def scalars(self) -> dict[str, Any]:
        """Return the state outside tensors, JSON-compatible."""
        return {key: self._group[key] for key in SCALARS if key in self._group}

    def load_scalars(self, scalars: Mapping[str, Any]) -> None:
        self._group.update(scalars)

    @torch.no_grad()
    def evaluated(self) -> dict[str, Tensor]:
        """Return the parameters to evaluate and to export, by name.

        For Schedule-Free these are the average x in new tensors, recovered from the training point
        y = (1 - beta) z + beta x (Defazio et al., 2024, eq. 1); otherwise the live parameters themselves.
        """
        beta = _interpolation(self.config)
        if beta is None:
            return {name: parameter.detach() for name, parameter in self._parameters.items()}
        # The package's eval() and train() would move the parameters there and back, and lose bits on the way.
        return {
            name: torch.lerp(parameter.detach(), self._optimizer.state[parameter]["z"], 1 - 1 / beta)
            for name, parameter in self._parameters.items()
        }


def _build(config: OptimizerConfig, parameters: list[Parameter]) -> torch.optim.Optimizer:
    match config:
        case SgdConfig():
            return torch.optim.SGD(
                parameters,
                lr=config.learning_rate,
                momentum=config.momentum,
                nesterov=config.nesterov,
                weight_decay=config.weight_decay,
            )
        case AdamWConfig():
            return torch.optim.AdamW(
                parameters, lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay
            )
        case ScheduleFreeSgdConfig():
            optimizer: torch.optim.Optimizer = SGDScheduleFree(
                parameters,
                lr=config.learning_rate,
                momentum=config.momentum,
                weight_decay=config.weight_decay,
            )
        case ScheduleFreeAdamWConfig():
            optimizer = AdamWScheduleFree(
                parameters, lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay
            )
    optimizer.param_groups[0]["train_mode"] = True  # the package's train(), which has nothing to move yet
    return optimizer


def _initial_state(config: OptimizerConfig, parameter: Parameter) -> dict[str, Tensor]:
    """Return what the optimizer itself would create at its first step."""
    zeros, start = torch.zeros_like(parameter), parameter.detach().clone()
    match config:
        case SgdConfig():
            return {"momentum_buffer": zeros} if config.momentum else {}
        case AdamWConfig():
            return {"step": torch.tensor(0.0), "exp_avg": zeros, "exp_avg_sq": torch.zeros_like(parameter)}
        case ScheduleFreeSgdConfig():
            return {"z": start}
        case ScheduleFreeAdamWConfig():
            return {"z": start, "exp_avg_sq": zeros}


def _interpolation(config: OptimizerConfig) -> float | None:
    match config:
        case ScheduleFreeSgdConfig():
            return config.momentum
        case ScheduleFreeAdamWConfig():
            return config.betas[0]
        case _:
            return None
