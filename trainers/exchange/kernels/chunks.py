"""The largest entries of each chunk, and their places as 12 bits: the lower 8 of each, then the upper 4."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainers.exchange.kernels import operators
from trainers.exchange.kernels.codes import pack, unpack
from trainers.exchange.kernels.compiled import compiled_later
from trainers.traffic.chunk_layout import LARGEST_CHUNK, PLACE_BITS

#: Shorter chunks are left to torch, which is the faster one there.
LEAST_CHUNK = 512
#: Bits of a magnitude's float that tell magnitudes apart roughly, and the number of values of those above them.
LOWER_BITS = 20
NUM_UPPER = 1 << 31 - LOWER_BITS


def largest_of_each(chunks: Tensor, count: int) -> Tensor:
    """Return the places `(n, count)`, ascending, of the largest magnitudes of each of `chunks` `(n, c)`.

    Of equal magnitudes the first are taken. `count` is at least 1.
    """
    if operators.needed_for(chunks) or chunks.shape[1] < LEAST_CHUNK:
        return by_torch(chunks, count)
    places = torch.empty(len(chunks), count, dtype=torch.int64)
    _pick(chunks.abs().contiguous().view(torch.int32).numpy(), places.numpy())
    return places


def by_torch(chunks: Tensor, count: int) -> Tensor:
    """Return what `largest_of_each` does."""
    # Bits of floats that are not negative are in the floats' order; with the place behind them, no two are equal.
    backwards = torch.arange(LARGEST_CHUNK - 1, LARGEST_CHUNK - 1 - chunks.shape[1], -1, device=chunks.device)
    keys = (chunks.abs().view(torch.int32).long() << PLACE_BITS) + backwards
    found = keys.topk(count, dim=1, sorted=False).values & LARGEST_CHUNK - 1
    return (LARGEST_CHUNK - 1 - found).sort(dim=1).values


@compiled_later
def _pick(magnitudes: NDArray[np.int32], places: NDArray[np.int64]) -> None:
    """Write the `places` `(n, count)` of each row's largest, of the bits of `magnitudes` `(n, c)`.

    Counts by the upper bits tell which of these the cut-off has; only what has the same is sorted out.
    """
    counts, near = np.empty(NUM_UPPER, np.int32), np.empty(magnitudes.shape[1], np.int32)
    for index in range(len(places)):
        row, chosen = magnitudes[index], places[index]
        counts[:] = 0
        for each in row:
            counts[each >> LOWER_BITS] += 1
        upper, left = NUM_UPPER - 1, len(chosen)
        while counts[upper] < left:
            left -= counts[upper]
            upper -= 1
        num = 0
        for each in row:
            if each >> LOWER_BITS == upper:
                near[num] = each
                num += 1
        ordered = np.partition(near[:num], num - left)
        cutoff = ordered[num - left]
        ties = left - np.sum(ordered > cutoff)  # the first of those equal to the cut-off
        num = 0
        for place, each in enumerate(row):
            if each > cutoff or (each == cutoff and ties > 0):
                chosen[num] = place
                num += 1
                ties -= each == cutoff


def write_places(places: Tensor, low_out: Tensor, high_out: Tensor) -> None:
    """Write `places` `(k,)` in their chunks to `low_out` `(k,)` uint8 and `high_out` `(ceil(k / 2),)` uint8."""
    low_out.copy_((places & 0xFF).to(torch.uint8))
    pack((places >> 8).to(torch.uint8), PLACE_BITS - 8, high_out)


def read_places(low: Tensor, high: Tensor) -> Tensor:
    """Return the places `(k,)` int64 that `write_places` wrote."""
    upper = torch.empty_like(low)
    unpack(high, PLACE_BITS - 8, upper)
    return (upper.long() << 8) + low
