"""The largest entries of each chunk, and their places as 12 bits: the lower 8 of each, then the upper 4."""

import torch
from torch import Tensor

from trainers.exchange.kernels.codes import pack, unpack
from trainers.traffic.chunk_layout import LARGEST_CHUNK, PLACE_BITS


def largest_of_each(chunks: Tensor, count: int) -> Tensor:
    """Return the places `(n, count)`, ascending, of the largest magnitudes of each of `chunks` `(n, c)`.

    Of equal magnitudes the first are taken.
    """
    # Bits of floats that are not negative are in the floats' order; with the place behind them, no two are equal.
    backwards = torch.arange(LARGEST_CHUNK - 1, LARGEST_CHUNK - 1 - chunks.shape[1], -1, device=chunks.device)
    keys = (chunks.abs().view(torch.int32).long() << PLACE_BITS) + backwards
    found = keys.topk(count, dim=1, sorted=False).values & LARGEST_CHUNK - 1
    return (LARGEST_CHUNK - 1 - found).sort(dim=1).values


def write_places(places: Tensor, low_out: Tensor, high_out: Tensor) -> None:
    """Write `places` `(k,)` in their chunks to `low_out` `(k,)` uint8 and `high_out` `(ceil(k / 2),)` uint8."""
    low_out.copy_((places & 0xFF).to(torch.uint8))
    pack((places >> 8).to(torch.uint8), PLACE_BITS - 8, high_out)


def read_places(low: Tensor, high: Tensor) -> Tensor:
    """Return the places `(k,)` int64 that `write_places` wrote."""
    upper = torch.empty_like(low)
    unpack(high, PLACE_BITS - 8, upper)
    return (upper.long() << 8) + low
