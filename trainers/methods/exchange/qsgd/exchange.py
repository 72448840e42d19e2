"""QSGD: entries rounded at random to levels up to their bucket's norm (Alistarh et al., NIPS 2017)."""

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.kernels.codes import add_levels, round_at_random
from trainers.exchange.quantized import QuantizedExchange
from trainers.exchange.quantizer import Averaging, CodedPayload, Segments
from trainers.methods.exchange.qsgd.spec import QsgdConfig
from trainers.traffic.sizes import CodedLayout


class Qsgd(Averaging):
    """Unbiased. Buckets are runs of `bucket` entries of the flat vector, the last one shorter.

    With `levels` s the codes say -s .. s, in 2, 4 or 8 bits. `norm` max, the usual choice in practice, has the smaller
    error; l2 is the paper's, and its error bound.
    """

    uses_memory = False

    def __init__(
        self, segments: Segments, layout: CodedLayout, *, levels: int, bucket: int, norm: Literal["l2", "max"]
    ) -> None:
        self._levels, self._bucket, self._norm = levels, bucket, norm
        self._form, self.num_bytes = CodedPayload(layout), layout.num_bytes

    def encode(self, values: Tensor, payload: Tensor, generator: torch.Generator) -> None:
        scales, num_whole = self._form.scales(payload), len(values) // self._bucket
        scales[:num_whole] = self._norms(values[: num_whole * self._bucket].view(-1, self._bucket))
        if num_whole < len(scales):
            scales[num_whole:] = self._norms(values[num_whole * self._bucket :].unsqueeze(0))
        codes = round_at_random(values, scales, group=self._bucket, levels=self._levels, generator=generator)
        self._form.write_codes(codes, payload)

    def add_decoded(self, payload: Tensor, out: Tensor, *, factor: float = 1.0) -> None:
        steps = self._form.scales(payload) * (factor / self._levels)
        add_levels(self._form.codes(payload), steps, out, group=self._bucket, zero=self._levels)

    def _norms(self, buckets: Tensor) -> Tensor:
        """Return the norms `(n,)` of `buckets` `(n, bucket)`."""
        if self._norm == "max":
            return torch.maximum(buckets.amax(1), -buckets.amin(1))
        norms: Tensor = torch.linalg.vector_norm(buckets, dim=1)
        return norms


def build(config: QsgdConfig, buffer: Gradients, connection: Connection, *, seed: int) -> QuantizedExchange:
    """Return the exchange of `config`."""
    quantizer = partial(Qsgd, levels=config.levels, bucket=config.bucket, norm=config.norm)
    return QuantizedExchange(config, quantizer, buffer, connection, seed=seed)
