"""1-bit SGD: one bit per entry, and each layer's means above and below zero (Seide et al., INTERSPEECH 2014)."""

import torch
from torch import Tensor

from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.kernels.codes import add_either
from trainers.exchange.quantized import QuantizedExchange
from trainers.exchange.quantizer import Averaging, CodedPayload, Segments, edges_of, sign_codes
from trainers.methods.exchange.onebit.spec import OneBitConfig
from trainers.traffic.sizes import CodedLayout

#: Entries that are summed up at a time, so that temporary tensors stay in the cache.
BLOCK = 2**16


class OneBit(Averaging):
    """An entry >= 0 stands for the mean of all such entries of its layer, one < 0 for the mean of those.

    So the sum over a layer is sent exactly.
    """

    uses_memory = True

    def __init__(self, segments: Segments, layout: CodedLayout) -> None:
        self._segments, self._form, self.num_bytes = segments, CodedPayload(layout), layout.num_bytes
        self._edges = edges_of(segments)

    def encode(self, values: Tensor, payload: Tensor, generator: torch.Generator) -> None:
        codes, (lows, highs) = sign_codes(values), self._means(payload)
        for index, (start, stop) in enumerate(self._segments):
            num_high = codes[start:stop].count_nonzero()
            below, above = _halves(values[start:stop])
            lows[index] = below / (stop - start - num_high).clamp(min=1)
            highs[index] = above / num_high.clamp(min=1)
        self._form.write_codes(codes, payload)

    def add_decoded(self, payload: Tensor, out: Tensor, *, factor: float = 1.0) -> None:
        codes, (lows, highs) = self._form.codes(payload), factor * self._means(payload)
        add_either(codes, lows, highs, out, edges=self._edges)

    def _means(self, payload: Tensor) -> Tensor:
        """Return a view `(2, num_layers)` into `payload`: the means below zero, and the others."""
        return self._form.scales(payload).view(2, -1)


def _halves(layer: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of the entries of `layer` `(d,)` below zero, and of those above."""
    parts = torch.split(layer, BLOCK)
    below = torch.stack([part.clamp(max=0.0).sum() for part in parts])
    above = torch.stack([part.clamp(min=0.0).sum() for part in parts])
    return below.sum(), above.sum()


def build(config: OneBitConfig, buffer: Gradients, connection: Connection, *, seed: int) -> QuantizedExchange:
    """Return the exchange of `config`."""
    return QuantizedExchange(config, OneBit, buffer, connection, seed=seed)
