"""DeMo: workers keep their own momenta, share only the largest cosine coefficients, and step by signs.

Peng, Quesnelle and Kingma (2024), "DeMo: decoupled momentum optimization". A worker keeps M <- b M + g, which is both
momentum and error memory. It sends the largest DCT-II coefficients of each tile of M, and subtracts from M what the
others decode from its message. All workers step by the sign of the decoded sum of the messages.

Here M does not contain the learning rate, which changes no sign while the rate is constant. As in all exchanges, the
mean is over all workers, not only over those that sent a coefficient.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from trainers.exchange.bucketwise import BucketwiseExchange
from trainers.exchange.connection import Connection
from trainers.exchange.gradients import Gradients
from trainers.exchange.kernels.chunks import largest_of_each, read_places, write_places
from trainers.exchange.kernels.entries import Entries
from trainers.exchange.kernels.lowrank import multiply
from trainers.exchange.kernels.pack import unit_for
from trainers.exchange.kernels.scatter import scatter_add
from trainers.exchange.memory import Residual
from trainers.exchange.message import Message
from trainers.exchange.step_result import Exchanged, all_finite, loss_if
from trainers.methods.exchange.demo.layout import TileLayout, Tiling
from trainers.methods.exchange.demo.spec import DemoConfig
from trainers.traffic.buckets import Bucket


@cache
def cosines(size: int, device: torch.device) -> Tensor:
    """Return the orthonormal DCT-II matrix `(size, size)`, a row for each frequency."""
    steps = torch.arange(size, dtype=torch.float64)
    waves = torch.cos(torch.pi / size * torch.outer(steps, steps + 0.5)) * math.sqrt(2 / size)
    waves[0] *= math.sqrt(0.5)
    return waves.float().to(device)


def transform(matrix: Tensor, tiling: Tiling) -> Tensor:
    """Return the coefficients of `matrix` `(rows, columns)`, a row for each tile `(num_tiles, size)`."""
    rows, columns, down, across = tiling
    height, width = tiling.height, tiling.width
    padded = functional.pad(matrix, (0, across * width - columns, 0, down * height - rows))
    tiles = padded.view(down, height, across, width).transpose(1, 2)
    coefficients = cosines(height, matrix.device) @ tiles @ cosines(width, matrix.device).t()
    return coefficients.reshape(tiling.num_tiles, tiling.size)


def restore(coefficients: Tensor, tiling: Tiling) -> Tensor:
    """Return the matrix `(rows, columns)` of `coefficients` `(num_tiles, size)`, as a rank needs it for itself."""
    device, (_, _, down, across) = coefficients.device, tiling
    tiles = coefficients.view(down, across, tiling.height, tiling.width)
    return _joined(cosines(tiling.height, device).t() @ tiles @ cosines(tiling.width, device), tiling)


def restore_alike(coefficients: Tensor, tiling: Tiling) -> Tensor:
    """Return what `restore` does, with equal bits on every CPU, in 20 times the time: a sign must be that of all."""
    device, (_, _, down, across) = coefficients.device, tiling
    height, width = tiling.height, tiling.width
    by_column = coefficients.view(-1, width).t().contiguous()
    lines = torch.empty_like(by_column)
    multiply(cosines(width, device), by_column, lines)
    by_row = lines.view(width, down, across, height).permute(3, 1, 2, 0).reshape(height, -1)
    places = torch.empty_like(by_row)
    multiply(cosines(height, device), by_row, places)
    return _joined(places.view(height, down, across, width).permute(1, 2, 0, 3), tiling)


def _joined(tiles: Tensor, tiling: Tiling) -> Tensor:
    """Return the matrix `(rows, columns)` of `tiles` `(down, across, height, width)`."""
    rows, columns, down, across = tiling
    return tiles.transpose(1, 2).reshape(down * tiling.height, across * tiling.width)[:rows, :columns]


class TileCode:
    """Sends the largest coefficients of each tile, in multiples of one power of two."""

    def __init__(self, layout: TileLayout, device: torch.device) -> None:
        self._layout, self._bucket = layout, layout.bucket
        firsts, begin = [], 0
        for _, tiling, per_tile in layout.parts:
            tiles = torch.arange(tiling.num_tiles, device=device)
            firsts.append((begin + tiling.size * tiles).unsqueeze(1).expand(-1, per_tile).flatten())
            begin += tiling.size * tiling.num_tiles
        #: Of each coefficient that is sent, where its tile's coefficients begin.
        self._firsts = torch.cat(firsts)

    def encode(self, values: Tensor, payload: Tensor) -> None:
        """Write `values` `(d,)` to `payload` `(num_bytes,)` uint8, zeros, which starts at a multiple of 4 bytes."""
        places, chosen = [], []
        for layer, tiling, per_tile in self._layout.parts:
            matrix = values[self._bucket.within(layer)].view(tiling.rows, tiling.columns)
            coefficients = transform(matrix, tiling)
            places.append(largest_of_each(coefficients, per_tile))
            chosen.append(coefficients.gather(1, places[-1]).flatten())
        parts, sent = self._layout.sections, torch.cat(chosen)
        unit = unit_for(sent)
        payload[parts.unit].view(torch.float32).copy_(unit)
        payload[parts.values].view(torch.float16).copy_(sent * unit.reciprocal())
        write_places(torch.cat([each.flatten() for each in places]), payload[parts.places], payload[parts.high_places])

    def decoded(self, payload: Tensor) -> Entries:
        """Return the coefficients that `payload` `(num_bytes,)` stands for: the same bits wherever it is read."""
        parts = self._layout.sections
        places = read_places(payload[parts.places], payload[parts.high_places])
        unit = payload[parts.unit].view(torch.float32)
        return Entries((self._firsts + places).int(), payload[parts.values].view(torch.float16).float() * unit)

    def sum_of(self, payloads: Tensor, out: Tensor, restored: Callable[[Tensor, Tiling], Tensor]) -> None:
        """Overwrite `out` `(d,)` by the sum of what `payloads` `(N, num_bytes)` stand for, as `restored` makes it."""
        coefficients = out.new_zeros(self._layout.num_coefficients)
        # One rank after the other: the order of additions, and with it every bit, is the same everywhere.
        for payload in payloads:
            scatter_add(coefficients, self.decoded(payload))
        sizes = [part.tiling.num_tiles * part.tiling.size for part in self._layout.parts]
        for (layer, tiling, _), some in zip(self._layout.parts, torch.split(coefficients, sizes), strict=True):
            out[self._bucket.within(layer)] = restored(some, tiling).flatten()


class DemoExchange(BucketwiseExchange):
    """All ranks gather all messages, and step by the signs of their sum."""

    def __init__(self, config: DemoConfig, buffer: Gradients, connection: Connection) -> None:
        super().__init__(Residual(buffer.gradient, decay=config.decay), buffer, connection, follows_rate=False)
        self._config = config
        self._layouts: list[TileLayout] = []  # by bucket, at the density of the step

    def step(self, loss: Tensor, level: float | None, learning_rate: float) -> Exchanged:
        """Replace the buffer's gradient by a direction, at the density `level`; None: that of the configuration."""
        density = self._config.check_level(level)
        self._layouts = [TileLayout(bucket, density) for bucket in self._buffer.buckets]
        outcome = super().step(loss, level, learning_rate)
        sent = sum(layout.num_sent for layout in self._layouts) / self._buffer.num_elements
        return outcome if outcome.diverged else replace(outcome, density=sent)

    def _exchange(self, bucket: Bucket, loss: Tensor) -> Tensor:
        gradient, layout = self._buffer.wait(bucket), self._layouts[bucket.index]
        code = TileCode(layout, gradient.device)
        momentum = self._memory.corrected(gradient, bucket.span)
        message = Message(layout.num_bytes, gradient.device)
        message.loss.copy_(loss_if(all_finite(momentum), loss))
        code.encode(momentum, message.payload)
        code.sum_of(message.payload.unsqueeze(0), gradient, restore)
        momentum -= gradient
        payloads, losses = message.gathered(self._connection)
        code.sum_of(payloads, gradient, restore_alike)
        # The decoded sum may overflow although no entry did; its bits are the same on all ranks.
        finite = all_finite(gradient)
        torch.sign(gradient, out=gradient)
        return loss_if(finite, losses)


def build(config: DemoConfig, buffer: Gradients, connection: Connection, *, seed: int) -> DemoExchange:
    """Return the exchange of `config`."""
    return DemoExchange(config, buffer, connection)
