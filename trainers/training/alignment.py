"""Measure whether gradients keep pointing where the last update went."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import Parameter

from trainers.snapshot import WithoutScalars

#: Entries of the parameters that are looked at, at most: of so many, a cosine is known within 0.01.
MOST_ENTRIES = 2**14
#: A shorter gradient or update has no direction.
LEAST_NORM = 1e-12


class Alignment(WithoutScalars):
    """The cosine between a step's descent direction and the update before it. Its state is the last update.

    It is the learning rate's hypergradient (Baydin et al., 2018, "Online learning rate adaptation with hypergradient
    descent", section 2), made free of both lengths: above 0 where a longer update would have got further.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._parameters = list(parameters)
        self._stride = math.ceil(sum(each.numel() for each in parameters) / MOST_ENTRIES)
        self._place: Tensor | None = None  # where the last update led to, and ...
        self._update: Tensor | None = None  # ... the update

    def begin(self) -> None:
        """Forget the last update."""
        self._place, self._update = None, None

    def begin_if_moved(self) -> None:
        """Forget the last update if the parameters are no longer where it led to."""
        if self._place is not None and not torch.equal(self._place, self._somewhere()):
            self.begin()

    def tensors(self) -> dict[str, Tensor]:
        """Return the last update, and the place that it led to; {}: none is known."""
        if self._place is None or self._update is None:
            return {}
        return {"place": self._place, "update": self._update}

    def fit(self, tensors: Mapping[str, Tensor]) -> None:
        self.begin()
        if tensors:  # checkpoints of earlier releases have none
            device = self._parameters[0].device
            self._place, self._update = (torch.empty_like(tensors[name], device=device) for name in ("place", "update"))

    def state_dict(self) -> dict[str, Tensor]:
        """Return `tensors()`."""
        return self.tensors()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from `state`."""
        self.fit(state)
        for name, live in self.tensors().items():
            live.copy_(state[name])

    def measure(self) -> Tensor:
        """Return the cosine `()` for the gradients that the next update is made of; 0 if there was none before."""
        zero = self._parameters[0].new_zeros(())
        if self._update is None:
            return zero
        gradient = self._some([zero.expand_as(each) if each.grad is None else each.grad for each in self._parameters])
        lengths: Tensor = gradient.norm() * self._update.norm()
        return -gradient.dot(self._update) / lengths.clamp(min=LEAST_NORM)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Take what happens to the parameters inside as an update; nothing else may change them before the next one."""
        before = self._somewhere() if self._place is None else self._place
        yield
        self._place = self._somewhere()
        self._update = self._place - before

    def _somewhere(self) -> Tensor:
        return self._some([each.detach() for each in self._parameters])

    def _some(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return evenly spaced entries `(m,)` of `tensors`, in a new tensor."""
        return torch.cat([each.reshape(-1)[:: self._stride] for each in tensors]).float()
