"""Measure whether gradients keep pointing where the last update went."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import Parameter, functional

#: Entries of the parameters that are looked at, at most: a cosine needs no more.
MOST_ENTRIES = 2**20


class Alignment:
    """The cosine between a step's descent direction and the update before it.

    It is the learning rate's hypergradient (Baydin et al., 2018, "Online learning rate adaptation with hypergradient
    descent", section 2), made free of both lengths: above 0 where a longer update would have got further.
    """

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._parameters = list(parameters)
        self._stride = math.ceil(sum(each.numel() for each in parameters) / MOST_ENTRIES)
        self._update: Tensor | None = None

    def begin(self) -> None:
        """Forget the last update, so that what is measured does not depend on what was trained before."""
        self._update = None

    def measure(self) -> Tensor:
        """Return the cosine `()` for the gradients that the next update is made of; 0 if there was none before."""
        zero = self._parameters[0].new_zeros(())
        if self._update is None:
            return zero
        gradient = self._some([zero.expand_as(each) if each.grad is None else each.grad for each in self._parameters])
        return -functional.cosine_similarity(gradient, self._update, dim=0)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Take what happens to the parameters inside as an update."""
        before = self._some([each.detach() for each in self._parameters])
        yield
        self._update = self._some([each.detach() for each in self._parameters]).sub_(before)

    def _some(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return evenly spaced entries `(m,)` of `tensors`, in a new tensor."""
        return torch.cat([each.reshape(-1)[:: self._stride] for each in tensors]).float()
