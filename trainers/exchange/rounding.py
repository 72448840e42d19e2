"""Averages over the ranks in float16 without a danger: scaled by the last averages, repeated if that overflows."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from trainers.exchange.outcome import is_finite
from trainers.exchange.wire import Wire

#: The largest sum of the step before is scaled to this. Float16 ends at 65,504: there is room for growth, and for ranks
#: whose own values are far larger than their sum. At the other end it holds 2^-21 of this with full precision.
TARGET = 2.0**7


class Rounded:
    """Mutable: a power of two for each group of tensors, known to all ranks since they have seen the same sums."""

    def __init__(self, wire: Wire, values: Literal["float16", "float32"]) -> None:
        self._wire, self._values = wire, values
        self._scales: dict[str, float] = {}
        self._next: dict[str, float] = {}

    def average(self, call: int, groups: Sequence[Sequence[Tensor]]) -> bool:
        """Average all tensors of all groups over the ranks, in place, in one collective; returns if they are finite.

        The tensors of a group are of one magnitude. `call` tells the calls of a step apart. A group that is new is sent
        as float32, as all is that overflowed in float16.
        """
        tensors = [tensor for group in groups for tensor in group]
        if not tensors:
            return True
        scales = [self._scales.get(f"{call}.{index}") for index in range(len(groups))]
        factors = [scale for scale, group in zip(scales, groups, strict=True) for _ in group]
        is_exact = self._values == "float32" or None in factors
        finite = (not is_exact and self._half(tensors, factors)) or self._full(tensors)  # type: ignore[arg-type]
        for index, group in enumerate(groups):
            if group:
                self._next[f"{call}.{index}"] = self._scale_for(group)
        return finite

    def _full(self, tensors: Sequence[Tensor]) -> bool:
        """Average in float32; returns whether all of it is finite."""
        words = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self._wire.all_reduce_sum(words, {"gradient": words.nbytes})
        _spread(words, tensors, [1.0 / self._wire.num_workers] * len(tensors))
        return is_finite(words)

    def _half(self, tensors: Sequence[Tensor], factors: Sequence[float]) -> bool:
        """Average in float16; returns whether all of it fitted. The tensors change only then."""
        scaled = [tensor.reshape(-1) * factor for tensor, factor in zip(tensors, factors, strict=True)]
        words = torch.cat(scaled).half()
        self._wire.all_reduce_sum(words, {"gradient": words.nbytes})
        sums = words.float()
        if not is_finite(sums):
            return False
        _spread(sums, tensors, [1.0 / (factor * self._wire.num_workers) for factor in factors])
        return True

    def _scale_for(self, group: Sequence[Tensor]) -> float:
        largest = max(float(tensor.abs().max()) for tensor in group) * self._wire.num_workers
        if not 0 < largest < math.inf:
            return 1.0
        return 2.0 ** math.floor(math.log2(TARGET / largest))

    def commit(self) -> None:
        """The step counts: scale the next one by what this one averaged."""
        self._scales, self._next = self._next, {}

    def scalars(self) -> dict[str, Any]:
        return dict(self._scales)

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._scales = dict(scalars)


def _spread(words: Tensor, tensors: Sequence[Tensor], factors: Sequence[float]) -> None:
    """Write consecutive parts of `words`, times their factors, to `tensors`."""
    parts = torch.split(words, [tensor.numel() for tensor in tensors])
    for part, tensor, factor in zip(parts, tensors, factors, strict=True):
        torch.mul(part.view_as(tensor), factor, out=tensor)
