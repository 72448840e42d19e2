"""ScheduleFree+: Adam's direction, Polyak's step, and Schedule-Free's average (Defazio, 2026, arXiv:2605.19095)."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

Group = dict[str, Any]  # a torch parameter group
#: Added to the root of the squares' average.
EPSILON = 1e-8


class ScheduleFreePlus(torch.optim.Optimizer):
    """Moves z by Adam's direction, as far as Polyak's step says, and takes gradients at y, near the average x of z.

    With F the loss at y, g its gradient, and e the average of |g|_1 sqrt(pi / 2), the step is `lr` x alpha, where

        alpha = max(0, F + <g, z - y>) / e
        z <- z - (lr alpha)^2 decay y - lr alpha m / (sqrt(v) + eps)
        x <- (1 - c) x + c z    y <- beta x + (1 - beta) z

    m and v are Adam's averages, and c is the square of the largest step so far over the sum of these squares. The paper
    has beta <g, z - x>, which is <g, z - y>. Where the gradient is 0, alpha is 0. It is also 0 where F + <g, z - y> is
    below 0, so this is for losses whose least value is about 0.

    |g|_1 and the product are of all parameters together; a group's own rate is part of its `lr`. The paper's annealing
    of beta, power of c, and warm-up of the average are left out. `l1_momentum` is that of the average e; the paper's
    code has 0 by default. The parameters are y; all state exists from the start.
    """

    def __init__(
        self,
        params: Iterable[Parameter] | Iterable[Group],
        lr: float = 1.0,
        *,
        betas: tuple[float, float] = (0.9, 0.95),
        interpolation: float = 0.9,
        l1_momentum: float = 0.9,
        weight_decay: float = 0.0,
    ) -> None:
        options: Group = {
            "lr": lr,
            "betas": betas,
            "interpolation": interpolation,
            "l1_momentum": l1_momentum,
            "weight_decay": weight_decay,
        }
        numbers = {"k": 0, "l1_average": 0.0, "largest_step": 0.0, "weight_sum": 0.0, "train_mode": True}
        super().__init__(params, options | numbers)
        for group in self.param_groups:
            for parameter in [each for each in group["params"] if each.requires_grad]:
                self.state[parameter] = {
                    "z": parameter.detach().clone(),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }

    @torch.no_grad()
    def step(self, closure: Callable[[], float], *, clipped: Tensor | float = 1.0) -> float:  # type: ignore[override]
        """Apply one update; `closure` returns the loss at y, of which the gradients are. These are used as scratch.

        If the gradients are clipped, `clipped` is the factor by which they were multiplied. Polyak's step is that of
        the whole gradient: it would be longer by 1 / `clipped` if the clipped one divided it. Nothing changes where the
        gradient's norm overflows, so that clipping leaves 0. A gradient that is not finite makes the parameters so.
        """
        if not all(group["train_mode"] for group in self.param_groups):
            raise RuntimeError("the parameters are the average: call `train()` before a step")
        with torch.enable_grad():
            loss = float(closure())
        measured = self._measured(clipped)
        if measured is None:
            return loss
        l1, product = measured
        for group in self.param_groups:
            size, share = _advance(group, l1=l1, gap=max(0.0, loss + product))
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group, size=size, share=share)
        return loss

    def _measured(self, clipped: Tensor | float) -> tuple[float, float] | None:
        """Return |g|_1 and <g, z - y> over all parameters, as before clipping. The host waits for a GPU here.

        None if they cannot be told, though the gradients are finite: they overflow, or clipping by 0 leaves nothing.
        """
        norms, products = [], []
        for group in self.param_groups:
            for parameter in group["params"]:
                if (gradient := parameter.grad) is not None:
                    norms.append(torch.linalg.vector_norm(gradient, 1))
                    products.append((self.state[parameter]["z"] - parameter).mul_(gradient).sum())
        if not norms:
            return 0.0, 0.0
        sums = torch.stack([torch.stack(norms), torch.stack(products)]).sum(dim=1, dtype=torch.float64)
        factor = torch.as_tensor(clipped, dtype=torch.float64, device=sums.device).reshape(1)
        l1, product, kept = torch.cat([sums, factor]).tolist()
        if kept != 0 and math.isfinite(l1) and math.isfinite(product):
            return l1 / kept, product / kept
        gradients = [each.grad for group in self.param_groups for each in group["params"] if each.grad is not None]
        is_lost = not all(bool(gradient.isfinite().all()) for gradient in gradients)
        return (math.nan, math.nan) if is_lost else None

    def _update(self, y: Tensor, gradient: Tensor, group: Group, *, size: float, share: float) -> None:
        """Move z by a step of `size`, the average by `share` of the way to it, and y to between the two."""
        z, mean, square = (self.state[y][name] for name in ("z", "exp_avg", "exp_avg_sq"))
        (beta1, beta2), beta, taken = group["betas"], group["interpolation"], group["k"]
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = gradient.copy_(square).div_(1 - beta2**taken).sqrt_().add_(EPSILON)
        move = (mean / root).mul_(-size / (1 - beta1**taken))
        if group["weight_decay"]:
            move.add_(y, alpha=-(size**2) * group["weight_decay"])
        # x, which is not kept, follows from y and z: what remains once it is out of the two formulas is this.
        y.lerp_(z, share).add_(move, alpha=1 - beta * (1 - share))
        z.add_(move)

    @torch.no_grad()
    def eval(self) -> None:
        """Put the average x, to evaluate, into the parameters; `train` puts y back, but for rounding."""
        self._put(train_mode=False)

    @torch.no_grad()
    def train(self) -> None:
        """Put y, to take gradients at, into the parameters."""
        self._put(train_mode=True)

    def _put(self, *, train_mode: bool) -> None:
        for group in self.param_groups:
            if group["train_mode"] != train_mode:
                beta = group["interpolation"]
                for parameter in group["params"]:
                    parameter.lerp_(self.state[parameter]["z"], 1 - beta if train_mode else 1 - 1 / beta)
                group["train_mode"] = train_mode


def _advance(group: Group, *, l1: float, gap: float) -> tuple[float, float]:
    """Note a step in the group's numbers; returns its size, and the share of the new z in the average."""
    group["k"] += 1
    momentum = group["l1_momentum"]
    group["l1_average"] = momentum * group["l1_average"] + (1 - momentum) * l1 * math.sqrt(math.pi / 2)
    expected = group["l1_average"] / (1 - momentum ** group["k"])
    size = group["lr"] * gap / expected if l1 > 0 else 0.0
    group["largest_step"] = max(group["largest_step"], size)
    weight = group["largest_step"] ** 2
    group["weight_sum"] += weight
    return size, weight / group["weight_sum"] if weight else 0.0
