"""TernGrad: -1, 0 or 1 per entry, with the right mean, times a scale per layer (Wen et al., NeurIPS 2017)."""

import math
from functools import partial

import torch
from torch import Tensor

from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.kernels.codes import add_levels_between, round_at_random
from trainers.exchange.quantized import QuantizedExchange
from trainers.exchange.quantizer import Averaging, CodedPayload, Segments, edges_of
from trainers.methods.exchange.terngrad.spec import TernGradConfig
from trainers.traffic.sizes import CodedLayout


class TernGrad(Averaging):
    """Unbiased but for its clipping: a layer's scale is its largest magnitude, at most `clip` standard deviations.

    The deviation is taken about zero, or a layer of equal entries would be clipped to nothing. No memory, as published:
    the error of what is drawn can be larger than the vector.
    """

    uses_memory = False

    def __init__(self, segments: Segments, layout: CodedLayout, *, clip: float) -> None:
        self._segments, self._form, self.num_bytes = segments, CodedPayload(layout), layout.num_bytes
        self._edges, self._clip = edges_of(segments), clip

    def encode(self, values: Tensor, payload: Tensor, generator: torch.Generator) -> None:
        codes, scales = torch.empty_like(values, dtype=torch.uint8), self._form.scales(payload)
        for index, (start, stop) in enumerate(self._segments):
            scale, layer = scales[index : index + 1], values[start:stop]
            most = torch.maximum(layer.amax(), -layer.amin())
            norm: Tensor = torch.linalg.vector_norm(layer)
            clipped = norm * (self._clip / math.sqrt(len(layer)))
            scale.copy_(torch.fmin(most, clipped))  # fmin: without a clip, a layer of zeros has 0 * inf
            codes[start:stop] = round_at_random(layer, scale, group=len(layer), levels=1, generator=generator)
        self._form.write_codes(codes, payload)

    def add_decoded(self, payload: Tensor, out: Tensor, *, factor: float = 1.0) -> None:
        steps = factor * self._form.scales(payload)
        add_levels_between(self._form.codes(payload), steps, out, edges=self._edges, zero=1.0)


def build(config: TernGradConfig, buffer: Gradients, connection: Connection, *, seed: int) -> QuantizedExchange:
    """Return the exchange of `config`."""
    return QuantizedExchange(config, partial(TernGrad, clip=config.clip), buffer, connection, seed=seed)
