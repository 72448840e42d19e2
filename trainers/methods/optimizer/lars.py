"""LARS: each layer's step is in proportion to the length of its weights (You et al., 2017, Algorithm 1)."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


class Lars(torch.optim.Optimizer):
    """SGD with momentum whose rate is trust x |w| / (|g| + decay |w|) times `lr`, layer by layer.

    Parameters of one dimension (biases, norms), whose length says little and may be 0, take plain steps of rate trust x
    `lr`, without weight decay: our choice. The rate is outside the momentum, as in `torch.optim.SGD`; the paper has it
    inside, which is the same while it does not change.
    """

    def __init__(
        self,
        params: Iterable[Parameter] | Iterable[dict[str, Any]],
        lr: float = 1.0,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Apply one update. The gradients are used as scratch."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Parameter, group: dict[str, Any]) -> None:
        update = parameter.grad
        assert update is not None
        if parameter.ndim > 1:
            ratio = _ratio(parameter, update, weight_decay=group["weight_decay"])
            update.add_(parameter, alpha=group["weight_decay"]).mul_(ratio)
        update.mul_(group["trust"])
        if group["momentum"]:
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            update = state["momentum_buffer"].mul_(group["momentum"]).add_(update)
        parameter.add_(update, alpha=-group["lr"])


def _ratio(weight: Tensor, gradient: Tensor, *, weight_decay: float) -> Tensor:
    """Return |w| / (|g| + decay |w|), a scalar tensor; 1 where either length is 0."""
    length, slope = weight.norm(), gradient.norm()
    ratio = length / (slope + weight_decay * length)
    return torch.where((length > 0) & (slope > 0), ratio, torch.ones_like(ratio))
