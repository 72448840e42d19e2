"""The CPU kernels, compiled by numba on first use: import this module only where one is called.

Each runs on one thread. Vectors come as matrices of at most 64 columns: a row is
one loop of vector instructions, whose hits end up as the bits of one word, so that only hits cost a branch.
"""

from typing import Any

import numpy as np

from trainers.exchange.kernels.compiled import compiled
from trainers.traffic.payload_layout import BLOCK

LARGEST = np.finfo(np.float32).max
ONE = np.uint64(1)
#: Multiplied by 2^k, a de Bruijn number's upper six bits tell k.
DE_BRUIJN = 0x03F79D71B4CB0A89
FACTOR, SHIFT = np.uint64(DE_BRUIJN), np.uint64(58)
POSITION = np.argsort([(DE_BRUIJN << k) % 2**64 >> 58 for k in range(64)])


@compiled
def _lowest(word: Any) -> Any:
    """Return the position of the lowest set bit of a uint64 other than 0."""
    return POSITION[((word & (~word + ONE)) * FACTOR) >> SHIFT]


@compiled
def _emit(hits: Any, corrected: Any, row: Any, threshold: Any, first: Any, entries: Any, wanted: Any) -> Any:
    """Move what reaches `threshold` among the `hits` of a row, whose index is `first`, to `entries`.

    Return (entries that reached it so far, whether all hits were finite).
    """
    indices, values = entries
    is_finite = True
    while hits:
        column = _lowest(hits)
        hits &= hits - ONE
        value = corrected[row, column]
        is_finite &= abs(value) <= LARGEST
        if abs(value) >= threshold:
            if wanted < len(indices):
                indices[wanted], values[wanted] = first + column, value
                corrected[row, column] = 0
            wanted += 1
    return wanted, is_finite


@compiled
def select(vectors: Any, threshold: Any, first: Any, entries: Any, wanted: Any) -> Any:
    """Split rows of gradient + residual; see `select.select`. `vectors` are (gradient, residual, next residual)."""
    gradient, residual, kept = vectors
    is_finite = True
    for row in range(gradient.shape[0]):
        hits = np.uint64(0)
        for column in range(gradient.shape[1]):
            corrected = gradient[row, column] + residual[row, column]
            kept[row, column] = corrected
            # Neither NaN nor infinity is below a threshold, so only hits need a look at whether they are finite.
            hits |= np.uint64(not (abs(corrected) < threshold)) << np.uint64(column)
        if hits:
            wanted, is_row_finite = _emit(hits, kept, row, threshold, first + row * gradient.shape[1], entries, wanted)
            is_finite &= is_row_finite
    return wanted, is_finite


@compiled
def select_velocity(factors: Any, vectors: Any, threshold: Any, first: Any, entries: Any, wanted: Any) -> Any:
    """Split rows of the velocity; see `select.MomentumCorrection`, whose `factors` these are.

    `vectors` are (gradient, momentum, velocity, next momentum, next velocity).
    """
    decay, to_momentum, to_velocity = factors
    gradient, momentum, velocity, next_momentum, kept = vectors
    is_finite = True
    for row in range(gradient.shape[0]):
        hits = np.uint64(0)
        for column in range(gradient.shape[1]):
            new = gradient[row, column]
            moved = decay * momentum[row, column] + to_momentum * new
            corrected = velocity[row, column] + moved + to_velocity * new
            next_momentum[row, column] = moved
            kept[row, column] = corrected
            hits |= np.uint64(not (abs(corrected) < threshold)) << np.uint64(column)
        if hits:
            wanted, is_row_finite = _emit(hits, kept, row, threshold, first + row * gradient.shape[1], entries, wanted)
            is_finite &= is_row_finite
    return wanted, is_finite


@compiled
def scatter_add(out: Any, indices: Any, values: Any, scale: Any) -> None:
    """See `scatter.scatter_add`."""
    for place in range(len(indices)):
        # Unsigned: numba need not ask whether an index counts from the end, which takes as long as the addition.
        out[np.uint32(indices[place])] += scale * values[place]


@compiled
def find_bits(words: Any, indices: Any) -> Any:
    """Write the places of the set bits of int32 `words` to `indices`, ascending, while there is room; return how many.

    Bit j of word i is place 32 i + j.
    """
    count = 0
    for word in range(len(words)):
        bits = np.uint64(np.uint32(words[word]))
        while bits and count < len(indices):
            indices[count] = word * 32 + _lowest(bits)
            bits &= bits - ONE
            count += 1
    return count


@compiled
def sum_blocks(out: Any, counts: Any, places: Any, values: Any, scale: Any) -> None:
    """See `pack.sum_unpacked`: row i of `counts`, uint16 `places` and `values` is payload i.

    Payloads take turns block by block, so a block of the sum is cleared and added to while it is in the cache.
    """
    starts = np.zeros(len(counts), np.int64)
    for block in range(counts.shape[1]):
        target = out[block * BLOCK : (block + 1) * BLOCK]
        target[:] = 0
        for rank in range(len(counts)):
            stop = starts[rank] + counts[rank, block]
            here, added = places[rank, starts[rank] : stop], values[rank, starts[rank] : stop]
            for entry in range(len(here)):
                target[here[entry]] += scale * added[entry]
            starts[rank] = stop
