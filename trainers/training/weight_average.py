"""An average of the weights that training passes through, which may be a better model than the last of them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

#: The least steps between two states that are averaged: neighbours differ little, and each costs time.
EVERY = 4
#: The count of a run that began in a release without averages. It keeps none: a replay, which begins at step 0, would
#: have another.
NONE = -1
#: The larger, the fewer states count: about the last ninth of them.
DECAY = 8


class WeightAverage:
    """The polynomial-decay average of the `live` weights, by name (Shamir and Zhang, ICML 2013, section 4).

    State number t moves the average by the share (`DECAY` + 1) / (t + `DECAY`), so what counts is a share of the steps
    so far, and a run needs no planned end. Without `live` tensors it keeps nothing.
    """

    def __init__(self, live: Mapping[str, Tensor]) -> None:
        self._live = {name: tensor.detach() for name, tensor in live.items()}
        # made at once, so that the first checkpoint and the first steps show what room a run needs
        self._mean = {name: _accumulator(tensor) for name, tensor in self._live.items()}
        self._count, self._last = 0, 0  # states counted, and the step of the last

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Count the state after `step` steps, if the last one counted is at least `EVERY` steps before it."""
        if step - self._last < EVERY or not self._live or self._count == NONE:
            return
        self._count, self._last = self._count + 1, step
        if not self._mean:  # checkpoints of earlier releases hold it only from the first state on
            self.fit(self._live)
        means = list(self._mean.values())
        states = [live.to(mean.dtype) for live, mean in zip(self._live.values(), means, strict=True)]
        torch._foreach_lerp_(means, states, (DECAY + 1) / (self._count + DECAY))

    @property
    def has_states(self) -> bool:
        """Return whether a state was counted, so that there is an average."""
        return bool(self._mean) and self._count > 0

    def weights(self) -> dict[str, Tensor]:
        """Return the average by name, as the model holds it; empty before the first state."""
        means = self._mean if self.has_states else {}
        return {name: mean.to(self._live[name].dtype) for name, mean in means.items()}

    def tensors(self) -> dict[str, Tensor]:
        return self._mean

    def fit(self, tensors: Mapping[str, Tensor]) -> None:
        if tensors.keys() != self._mean.keys():
            self._mean = {name: _accumulator(live) for name, live in self._live.items() if name in tensors}

    def scalars(self) -> dict[str, Any]:
        return {"count": self._count, "last": self._last}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._count, self._last = scalars.get("count", NONE), scalars.get("last", 0)


def _accumulator(live: Tensor) -> Tensor:
    """Return zeros for the average of `live`, in 32 bits at least: small shares would be lost in 16."""
    return torch.zeros_like(live, dtype=torch.promote_types(live.dtype, torch.float32))
