"""Muon for a model's matrices, and AdamW for what is none, with one learning rate (Jordan, 2024; Liu et al., 2025)."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Group = dict[str, Any]  # a torch parameter group
#: Of the quintic Newton-Schulz iteration, and how often it is applied (Jordan, 2024).
COEFFICIENTS, NUM_ITERATIONS = (3.4445, -4.7750, 2.0315), 5
#: A shorter gradient counts as this long.
LEAST_NORM = 1e-7


class MuonWithAdamW(torch.optim.Optimizer):
    """Steps matrices along the orthogonal factor of their momentum, and all other parameters as AdamW does.

    A step on an `(m, n)` matrix is scaled by 0.2 sqrt(max(m, n)), which gives its entries the root mean square that
    AdamW's steps have (Liu et al., 2025, section 2.2). So both take the same rate and weight decay. A convolution's
    kernel `(out, in, ...)` is the matrix `(out, in x ...)` (Jordan, 2024). `torch.optim.Muon` does the same in bfloat16
    alone, which a processor without such instructions multiplies 30 times slower than float32.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        *,
        not_matrices: Collection[Tensor] = (),
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.01,
        fused: bool | None = None,
    ) -> None:
        """Divide each of `groups` between the two; `not_matrices` are AdamW's whatever their shape, `fused` its own.

        What AdamW alone takes of a group's options holds for its part of the group.
        """
        defaults: Group = {"lr": 1e-3, "momentum": momentum, "weight_decay": weight_decay, "maximize": False}
        matrices = [*_part(groups, lambda each: is_matrix(each, not_matrices))]
        others = [*_part(groups, lambda each: not is_matrix(each, not_matrices))]
        adamw = torch.optim.AdamW(others or [{"params": []}], betas=betas, weight_decay=weight_decay, fused=fused)
        of_adamw = adamw.defaults.keys() - defaults.keys()
        of_muon = [
            defaults | {name: value for name, value in group.items() if name not in of_adamw} for group in matrices
        ]
        super().__init__([*of_muon, *(adamw.param_groups if others else ())], {})
        self.defaults |= adamw.defaults | defaults
        self._divide()

    def __setstate__(self, state: Group) -> None:
        """Take over groups and state, as of a loaded checkpoint or of a copy: both are other dictionaries then."""
        super().__setstate__(state)
        self._divide()

    def _divide(self) -> None:
        """Give each of the two its groups as they are now: those of AdamW alone have betas."""
        self._matrices = [group for group in self.param_groups if "betas" not in group]
        others = [group for group in self.param_groups if "betas" in group]
        self._adamw = torch.optim.AdamW(others) if others else None
        if self._adamw:
            self._adamw.state = self.state  # one state, by parameter, as of any other optimizer

    def steps_as_matrix(self, parameter: Tensor) -> bool:
        """Return whether `parameter` steps along an orthogonal factor, and not as AdamW's."""
        return any(parameter is each for group in self._matrices for each in group["params"])

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Apply one update."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self._matrices:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = parameter.grad.flatten(1)
                    self._step_matrix(parameter, -gradient if group["maximize"] else gradient, group)
        if self._adamw:
            self._adamw.step()
        return loss

    def _step_matrix(self, parameter: Tensor, gradient: Tensor, group: Group) -> None:
        rate, momentum = group["lr"], group["momentum"]
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        velocity = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        update = orthogonal(gradient.lerp(velocity, momentum))
        parameter.mul_(1 - rate * group["weight_decay"])
        parameter.add_(update.view(parameter.shape), alpha=-rate * 0.2 * math.sqrt(max(gradient.shape)))


def orthogonal(matrix: Tensor) -> Tensor:
    """Return U S V' for `matrix` `(m, n)` = U T V', with all of S near 1, by Newton and Schulz (Jordan, 2024).

    It is computed in the matrix's own precision, and on a GPU in bfloat16.
    """
    a, b, c = COEFFICIENTS
    is_tall = len(matrix) > matrix[0].numel()
    x = matrix.T if is_tall else matrix
    x = x.bfloat16() if x.is_cuda else x
    x = x / x.norm().clamp(min=LEAST_NORM)
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if is_tall else x).to(matrix.dtype).contiguous()


def is_matrix(parameter: Tensor, not_matrices: Collection[Tensor]) -> bool:
    """Return whether a parameter maps one layer to the next: a matrix, or a kernel."""
    return parameter.ndim >= 2 and all(parameter is not each for each in not_matrices)


def embeddings(model: nn.Module) -> list[Tensor]:
    """Return the tables of `model`, whose rows are entries of a list and no linear map."""
    return [each.weight for each in model.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)]


def _part(groups: Sequence[Group], belongs: Callable[[Tensor], bool]) -> Iterator[Group]:
    for group in groups:
        members = [each for each in group["params"] if belongs(each)]
        if members:
            yield group | {"params": members}
