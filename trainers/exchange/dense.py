"""Exchanges that send every entry as a number: one all-reduce a bucket."""

import math
from typing import Any

import torch
from torch import Tensor

from trainers import cost
from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.outcome import DIVERGED, Exchanged, is_finite
from trainers.exchange.wire import Parts, Wire

#: What beside the gradient is summed over the ranks.
Control = list[float]


class DenseExchange:
    """All-reduces the gradient itself: the trivial compressor and memory.

    In 16 bits gradients are divided before they are summed, as in torch's hooks; what is rounded off is lost.
    """

    threshold = None

    def __init__(self, buffer: GradientBuffer, wire: Wire, dtype: torch.dtype = torch.float32) -> None:
        self._buffer, self._wire, self._dtype = buffer, wire, dtype

    @torch.no_grad()
    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        *early, last = self._buffer.buckets
        for bucket in early:
            all_reduce_mean(self._buffer.wait(bucket), self._wire, [], self._dtype)
        [loss_sum] = all_reduce_mean(self._buffer.wait(last), self._wire, [float(loss)], self._dtype)
        # What is not finite on one rank is not finite in the sum, whose bits are the same on all ranks.
        if not (math.isfinite(loss_sum) and is_finite(self._buffer.gradient)):
            return DIVERGED
        return Exchanged(loss=loss_sum / self._wire.num_workers)

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def scalars(self) -> dict[str, Any]:
        return {}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        return


def all_reduce_mean(values: Tensor, wire: Wire, control: Control, dtype: torch.dtype = torch.float32) -> Control:
    """Average `values` `(n,)` over the ranks, in place, sent as `dtype`; returns the sums of the `control` numbers."""
    if dtype != torch.float32:
        rounded = (values / wire.num_workers).to(dtype)
        wire.all_reduce_sum(rounded, {"gradient": rounded.nbytes})
        values.copy_(rounded)
        return sums(control, wire)  # in a collective of its own: 16 bits are too few for a loss
    if not control:
        wire.all_reduce_sum(values, {"gradient": values.nbytes})
        values.div_(wire.num_workers)
        return []
    words = torch.cat([values.new_tensor(control), values])
    parts: Parts = {"control": cost.WORD_BYTES * len(control), "gradient": values.nbytes}
    wire.all_reduce_sum(words, parts)
    torch.div(words[len(control) :], wire.num_workers, out=values)
    return words[: len(control)].tolist()


def sums(control: Control, wire: Wire) -> Control:
    """Return the sums of the numbers over the ranks, in float32."""
    words = torch.tensor(control)
    if control:
        wire.all_reduce_sum(words, {"control": words.nbytes})
    return words.tolist()
