"""Muon for a model's matrices, and AdamW for what is none, with one learning rate (Jordan, 2024; Liu et al., 2025)."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Group = dict[str, Any]  # a torch parameter group


class MuonWithAdamW(torch.optim.Optimizer):
    """Steps matrices along the orthogonal factor of their momentum, and all other parameters as AdamW does.

    `torch.optim.Muon` scales a step on an `(m, n)` matrix by 0.2 sqrt(max(m, n)), which gives its entries the root mean
    square that AdamW's steps have (Liu et al., 2025, section 2.2). So both take the same rate and weight decay.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        *,
        not_matrices: Collection[Tensor] = (),
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.01,
    ) -> None:
        """Divide each of `groups` between the two; `not_matrices` are AdamW's whatever their shape."""
        matrices = [*_part(groups, lambda each: is_muons(each, not_matrices))]
        others = [*_part(groups, lambda each: not is_muons(each, not_matrices))]
        self._parts: list[torch.optim.Optimizer] = []
        if matrices:
            self._parts.append(
                torch.optim.Muon(matrices, momentum=momentum, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
            )
        if others:
            self._parts.append(torch.optim.AdamW(others, betas=betas, weight_decay=weight_decay))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self.defaults = {name: value for part in self._parts for name, value in part.defaults.items()}
        for part in self._parts:
            part.state = self.state  # one state, by parameter, as of any other optimizer

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Apply one update."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self._parts:
            part.step()
        return loss


def is_muons(parameter: Tensor, not_matrices: Collection[Tensor]) -> bool:
    """Whether Muon steps this parameter: a matrix that maps one layer to the next."""
    return parameter.ndim == 2 and all(parameter is not each for each in not_matrices)


def embeddings(model: nn.Module) -> list[Tensor]:
    """Return the tables of `model`, whose rows are entries of a list and no linear map."""
    return [each.weight for each in model.modules() if isinstance(each, nn.Embedding | nn.EmbeddingBag)]


def _part(groups: Sequence[Group], belongs: Callable[[Tensor], bool]) -> Iterator[Group]:
    for group in groups:
        members = [each for each in group["params"] if belongs(each)]
        if members:
            yield group | {"params": members}
