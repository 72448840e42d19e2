"""Muon for a model's matrices, and AdamW for what is none, with one learning rate (Jordan, 2024; Liu et al., 2025)."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Group = dict[str, Any]  # a torch parameter group


class MuonWithAdamW(torch.optim.Optimizer):
    """Steps matrices along the orthogonal factor of their momentum, and all other parameters as AdamW does.

    `torch.optim.Muon` scales a step on an `(m, n)` matrix by 0.2 sqrt(max(m, n)), which gives its entries the root mean
    square that AdamW's steps have (Liu et al., 2025, section 2.2). So both take the same rate and weight decay. A
    convolution's kernel `(out, in, ...)` is the matrix `(out, in x ...)` (Jordan, 2024).
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
        matrices = [*_part(groups, lambda each: is_matrix(each, not_matrices))]
        others = [*_part(groups, lambda each: not is_matrix(each, not_matrices))]
        adamw = torch.optim.AdamW(others, betas=betas, weight_decay=weight_decay) if others else None
        self._matrices = [_Matrices(group, momentum=momentum, weight_decay=weight_decay) for group in matrices]
        own = [each.group for each in self._matrices]
        super().__init__([*own, *(adamw.param_groups if adamw else ())], {})
        self._adamw = adamw
        for each in self._matrices:
            self.state.update(each.state())
            self.defaults |= each.defaults
        if adamw:
            self.defaults |= adamw.defaults
            adamw.state = self.state  # one state, by parameter, as of any other optimizer

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Apply one update."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for each in self._matrices:
            each.step()
        if self._adamw:
            self._adamw.step()
        return loss


class _Matrices:
    """A group of matrices and kernels as `torch.optim.Muon` wants them: two-dimensional, by views of the parameters."""

    def __init__(self, group: Group, *, momentum: float, weight_decay: float) -> None:
        self._parameters: list[Tensor] = group["params"]
        self._views = [parameter.detach().flatten(1) for parameter in self._parameters]
        self._muon: torch.optim.Optimizer = torch.optim.Muon(
            [group | {"params": self._views}],
            momentum=momentum,
            weight_decay=weight_decay,
            adjust_lr_fn="match_rms_adamw",
        )
        self.defaults = self._muon.defaults
        #: The same options, of the parameters themselves.
        self.group = self._muon.param_groups[0] | {"params": self._parameters}

    def state(self) -> dict[Tensor, dict[str, Any]]:
        """Return what Muon keeps of each parameter: its own dictionaries, by parameter."""
        return {each: self._muon.state[view] for each, view in zip(self._parameters, self._views, strict=True)}

    def step(self) -> None:
        """Apply one update with the options of `group`, as they are now."""
        [theirs] = self._muon.param_groups
        theirs |= {name: value for name, value in self.group.items() if name != "params"}
        pairs = list(zip(self._parameters, self._views, strict=True))
        for parameter, view in pairs:
            view.data = parameter.detach().flatten(1)  # whatever tensor lies behind the parameter by now
            view.grad = None if parameter.grad is None else parameter.grad.flatten(1)
        self._muon.step()
        for parameter, view in pairs:
            if view.data_ptr() != parameter.data_ptr():  # flattening a kernel in another memory format copies it
                parameter.copy_(view.view_as(parameter))


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
