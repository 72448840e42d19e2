"""Average over the ranks safely in float16: scale by the last averages, and repeat in float32 after an overflow."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from trainers.exchange.connection import Connection
from trainers.exchange.step_result import all_finite

#: The largest sum of the step before is scaled to this. Float16 ends at 65,504, which leaves room for growth, and for
#: ranks whose own values are far larger than their sum. Values down to 2^-21 of this keep full precision.
TARGET = 2.0**7
#: The exponent of the largest scale: float32 holds it and its inverse at full precision.
MOST = 126


class Rounded:
    """Keeps a power of two as the scale of each group of tensors. All ranks derive it from the same sums. Mutable."""

    def __init__(self, connection: Connection, values: Literal["float16", "float32"]) -> None:
        self._connection, self._values = connection, values
        self._scales: dict[str, float] = {}
        self._next: dict[str, float] = {}

    def begin(self) -> None:
        """Begin a step: discard what a step that did not count has left, since its groups may have been different."""
        self._next = {}

    def average(self, call: int, groups: Sequence[Sequence[Tensor]]) -> Tensor:
        """Average all tensors of all groups over the ranks, in place, in one collective.

        Returns whether they are finite, as a scalar on their device. The tensors of a group have similar magnitudes.
        `call` numbers the calls of a step. If a group is new, or float16 overflows, all tensors are sent as float32. To
        know whether it overflowed, the host waits for a GPU.
        """
        tensors = [tensor for group in groups for tensor in group]
        names = [f"{call}.{index}" for index, group in enumerate(groups) for _ in group]
        sums = self._full(tensors) if self._values == "float32" else self._scaled(tensors, names)
        for part, tensor in zip(_parts(sums, tensors), tensors, strict=True):
            torch.mul(part.view_as(tensor), 1.0 / self._connection.num_workers, out=tensor)
        return all_finite(sums)

    def _scaled(self, tensors: Sequence[Tensor], names: Sequence[str]) -> Tensor:
        """Return the concatenated sums of all tensors, and note the next scale of each group."""
        largest: list[float] = []
        for sums in self._attempts(tensors, [self._scales.get(name) for name in names]):
            largest = torch.stack([part.abs().max() for part in _parts(sums, tensors)]).tolist()
            if all(map(math.isfinite, largest)):
                break
        of_group: dict[str, float] = {}
        for name, each in zip(names, largest, strict=True):
            of_group[name] = max(each, of_group.get(name, 0.0))
        self._next |= {name: _scale_for(each) for name, each in of_group.items()}
        return sums

    def _attempts(self, tensors: Sequence[Tensor], scales: Sequence[float | None]) -> Iterator[Tensor]:
        """Yield the sums in float16 if all scales are known, then in float32."""
        known = [scale for scale in scales if scale is not None]
        if len(known) == len(tensors):
            yield self._half(tensors, known)
        yield self._full(tensors)

    def _half(self, tensors: Sequence[Tensor], scales: Sequence[float]) -> Tensor:
        words = torch.cat([tensor.reshape(-1) * scale for tensor, scale in zip(tensors, scales, strict=True)]).half()
        self._connection.all_reduce_sum(words, {"gradient": words.nbytes})
        sums = words.float()
        for part, scale in zip(_parts(sums, tensors), scales, strict=True):
            part.mul_(1.0 / scale)
        return sums

    def _full(self, tensors: Sequence[Tensor]) -> Tensor:
        words = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self._connection.all_reduce_sum(words, {"gradient": words.nbytes})
        return words

    def commit(self) -> None:
        """End a step that counts: scale the next one by the sums of this one."""
        self._scales, self._next = self._next, {}

    def scalars(self) -> dict[str, Any]:
        return dict(self._scales)

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self._scales, self._next = dict(scalars), {}


def _parts(words: Tensor, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return views of consecutive parts of `words`, as long as the tensors."""
    return torch.split(words, [tensor.numel() for tensor in tensors])


def _scale_for(largest: float) -> float:
    """Return the power of two that brings a sum of this magnitude near `TARGET`.

    For a sum of 0 it is the largest scale: the next sum either fits, or overflows and is sent again in float32.
    """
    if not math.isfinite(largest):
        return 1.0
    return 2.0 ** min(MOST, math.floor(math.log2(TARGET / largest))) if largest else 2.0**MOST
