"""Measure the gradients of a training loop at each optimizer step: they show whether the learning rate fits."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from trainers.own_loop.together import each_of
from trainers.training.alignment import Alignment


class GradientSigns:
    """Mutable: the scale and the alignment of each step's gradient, until they are taken.

    They are measured before the optimizer's step, when gradients are exchanged and unscaled. They are NaN and 0 for a
    step with a sparse gradient, and for one with a closure, which computes its gradients during the step. The same
    holds if a GradScaler leaves it to a fused optimizer to unscale gradients or to skip a step, and for several
    optimizers while losses are multiplied by a `scale`: it unscales each one's gradients right before that one steps.
    Where ranks train apart, each update is one rank's own, so no alignment is measured.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        parameters_may_differ: bool,
        scale: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self._parameters = [each for group in optimizer.param_groups for each in group["params"]]
        self._alignment, self._may_differ = Alignment(self._parameters), parameters_may_differ
        self._scale, self._are_several = scale, len(each_of(optimizer)) > 1
        self._scales: list[Tensor] = []
        self._alignments: list[Tensor] = []
        self._following: AbstractContextManager[None] | None = None
        before = optimizer.register_step_pre_hook(self._before)
        self._hooks = (before, optimizer.register_step_post_hook(self._after))

    def end(self) -> None:
        """Remove the hooks from the optimizer: nobody takes the measurements any more."""
        for hook in self._hooks:
            hook.remove()

    def begin(self) -> None:
        """Forget the last update: the model may have been restored since."""
        self._alignment.begin()

    def state_dict(self) -> dict[str, Any]:
        """Return what was measured and not taken, and the last update."""
        measured = {"scales": self._scales, "alignments": self._alignments}
        return {
            **{name: [number.detach() for number in each] for name, each in measured.items()},
            "update": self._alignment.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        device, names = self._parameters[0].device, ("scales", "alignments")
        self._scales, self._alignments = ([each.to(device) for each in state[name]] for name in names)
        self._alignment.load_state_dict(state["update"])

    def take(self, num_steps: int) -> tuple[list[float], list[float]]:
        """Return scales and alignments `(num_steps,)` of the steps since the last call; NaN and 0 if the count differs.

        A GradScaler skips steps, and a loop may take several between two reports.
        """
        scales, alignments = self._scales, self._alignments
        self._scales, self._alignments = [], []
        if not num_steps or len(scales) != num_steps:
            return [math.nan] * num_steps, [0.0] * num_steps
        return torch.stack(scales).tolist(), torch.stack(alignments).tolist()

    def _before(self, optimizer: torch.optim.Optimizer, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        gradients = [each.grad for each in self._parameters if each.grad is not None]
        has_closure = any(map(callable, (*args[1:], *kwargs.values())))  # a closure computes the gradients later
        is_scaled = self._are_several and self._scale() != 1.0
        is_unknown = has_closure or is_scaled or _is_scaled_or_left_out(optimizer)
        if is_unknown or any(each.is_sparse for each in gradients):
            self._skip()
            return
        num_entries = max(1, sum(each.numel() for each in gradients))
        self._scales.append(torch.nn.utils.get_total_norm(gradients) / math.sqrt(num_entries))
        if self._may_differ:
            self._alignment.begin()
        self._alignments.append(self._alignment.measure())
        self._following = self._alignment.following()
        self._following.__enter__()

    def _skip(self) -> None:
        """Count the step as unknown."""
        self._alignment.begin()
        self._scales.append(self._parameters[0].new_full((), math.nan))
        self._alignments.append(self._parameters[0].new_zeros(()))

    def _after(self, *_: object) -> None:
        if self._following is not None:
            self._following.__exit__(None, None, None)
            self._following = None


def _is_scaled_or_left_out(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a GradScaler has told a fused `optimizer` to unscale its gradients, or to skip the step."""
    found_inf = getattr(optimizer, "found_inf", None)
    return getattr(optimizer, "grad_scale", None) is not None or (found_inf is not None and bool(found_inf))
