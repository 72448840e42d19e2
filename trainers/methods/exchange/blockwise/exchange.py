"""Blockwise integers: entries rounded to the nearest of a few multiples of their block's scale, both ways.

Blocks as in Dettmers, Lewis, Shleifer and Zettlemoyer (2022), "8-bit optimizers via block-wise quantization", with
even steps; error feedback of workers and server as in DoubleSqueeze (Tang et al., 2019, Algorithm 1).
"""

import torch
from torch import Tensor

from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.kernels.codes import add_levels, round_to_nearest
from trainers.exchange.kernels.pack import unit_for
from trainers.exchange.memory import Residual
from trainers.exchange.quantizer import CodedPayload
from trainers.exchange.two_way import TwoWayExchange
from trainers.methods.exchange.blockwise.spec import BlockwiseConfig
from trainers.traffic.sizes import CodedLayout


class BlockIntegers:
    """Sends round(x / scale), at most `levels` from zero, where a block's largest magnitude is `levels` scales.

    An entry is wrong by at most half a scale, and what is wrong of it is a float32: nothing is rounded off on the way
    to a residual. Scales are float16 multiples of one power of two per payload, which the largest chooses: entries
    small or large are sent with the same precision.
    """

    def __init__(self, layout: CodedLayout, block: int) -> None:
        self._block, self._levels = block, 2 ** (layout.bits - 1) - 1
        self._form, self.num_bytes = CodedPayload(layout), layout.num_bytes

    def encode(self, values: Tensor, payload: Tensor) -> None:
        scales = self._largest(values) / self._levels
        unit = unit_for(scales.nan_to_num())
        self._form.unit(payload).copy_(unit)
        self._form.scales(payload).copy_(half_above(scales * unit.reciprocal()))
        codes = round_to_nearest(values, self._scales(payload), group=self._block, levels=self._levels)
        self._form.write_codes(codes, payload)

    def add_decoded(self, payload: Tensor, out: Tensor, *, factor: float = 1.0) -> None:
        scales = self._scales(payload) * factor
        add_levels(self._form.codes(payload), scales, out, group=self._block, zero=self._levels)

    def _scales(self, payload: Tensor) -> Tensor:
        """Return the scales `(num_blocks,)` float32 that `payload` tells."""
        return self._form.scales(payload).float() * self._form.unit(payload)

    def _largest(self, values: Tensor) -> Tensor:
        """Return the largest magnitude in each block of `values` `(num_blocks,)`; NaN if one is not finite."""
        num_whole = len(values) // self._block
        whole, rest = values.tensor_split([num_whole * self._block])
        blocks = [whole.view(num_whole, self._block), *([rest.unsqueeze(0)] if len(rest) else [])]
        largest = torch.cat([torch.maximum(each.amax(1), -each.amin(1)) for each in blocks])
        return largest.where(largest.isfinite(), torch.nan)


def half_above(values: Tensor) -> Tensor:
    """Return the least float16 that is not below each of `values` `(n,)`, from 0 to the largest float16, or NaN."""
    nearest = values.half()
    is_below = nearest.float() < values
    return (nearest.view(torch.int16) + is_below).view(torch.float16)  # the bits of the next number, counted up


def build(config: BlockwiseConfig, buffer: Gradients, connection: Connection, *, seed: int) -> TwoWayExchange:
    """Return the exchange of `config`."""
    return TwoWayExchange(config, Residual(buffer.gradient), buffer, connection, code=BlockIntegers)
