"""Blockwise integers: entries rounded to the nearest of a few multiples of their block's scale, both ways.

Blocks as in Dettmers, Lewis, Shleifer and Zettlemoyer (2022), "8-bit optimizers via block-wise quantization", with
even steps; error feedback of workers and server as in DoubleSqueeze (Tang et al., 2019, Algorithm 1).
"""

import torch
from torch import Tensor

from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.kernels.codes import add_levels, round_to_nearest
from trainers.exchange.memory import Residual
from trainers.exchange.quantizer import CodedPayload
from trainers.exchange.two_way import TwoWayExchange
from trainers.methods.exchange.blockwise.spec import BlockwiseConfig
from trainers.traffic.sizes import CodedLayout


class BlockIntegers:
    """Sends round(x / scale), at most `levels` from zero, where a block's largest magnitude is `levels` scales.

    An entry is wrong by at most half a scale, and what is wrong of it is a float32: nothing is rounded off on the way
    to a residual. Only what float16 cannot hold is wrong by more: of a block whose scale would be above its largest
    number the rest of every entry is left for later.
    """

    def __init__(self, layout: CodedLayout, block: int) -> None:
        self._block, self._levels = block, 2 ** (layout.bits - 1) - 1
        self._form, self.num_bytes = CodedPayload(layout), layout.num_bytes

    def encode(self, values: Tensor, payload: Tensor) -> None:
        scales, num_whole = self._form.scales(payload), len(values) // self._block
        whole, rest = values.tensor_split([num_whole * self._block])
        scales[:num_whole] = self._scales(whole.view(num_whole, self._block))
        if len(rest):
            scales[num_whole:] = self._scales(rest.unsqueeze(0))
        codes = round_to_nearest(values, scales.float(), group=self._block, levels=self._levels)
        self._form.write_codes(codes, payload)

    def add_decoded(self, payload: Tensor, out: Tensor, *, factor: float = 1.0) -> None:
        scales = self._form.scales(payload).float()
        add_levels(self._form.codes(payload), scales * factor, out, group=self._block, zero=self._levels)

    def _scales(self, blocks: Tensor) -> Tensor:
        """Return the scales `(n,)` of `blocks` `(n, block)`; NaN for one that is not finite."""
        largest = torch.maximum(blocks.amax(1), -blocks.amin(1))
        return half_above(largest / self._levels).where(largest.isfinite(), torch.nan)


def half_above(values: Tensor) -> Tensor:
    """Return the least float16 that is not below each of `values` `(n,)` >= 0; the largest one where there is none."""
    values = values.clamp(max=torch.finfo(torch.float16).max)
    nearest = values.half()
    is_below = nearest.float() < values
    return (nearest.view(torch.int16) + is_below).view(torch.float16)  # the bits of the next number, counted up


def build(config: BlockwiseConfig, buffer: Gradients, connection: Connection, *, seed: int) -> TwoWayExchange:
    """Return the exchange of `config`."""
    return TwoWayExchange(config, Residual(buffer.gradient), buffer, connection, code=BlockIntegers)
