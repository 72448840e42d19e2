"""Pack: entries as the bytes of a payload, whose size all ranks know, and back.

float16 values are multiples of one power of two per payload, so large and small gradients keep float16's 11 bits.
Signs stand for the mean magnitude of a payload's entries, which is the nearest to them. What rounding takes from a
value goes back to the memory.
"""

import math

import numpy as np
import torch
from torch import Tensor

from trainers.exchange.kernels.entries import Entries
from trainers.exchange.kernels.scatter import scatter_add
from trainers.exchange.layout import BLOCK, PayloadLayout

#: The largest magnitude is scaled to [2^14, 2^15): below float16's 65,504 with all that rounding may add.
TOP_EXPONENT = 15
#: Scales stop here, so that they and their inverses are normal float32.
LARGEST_SCALE_EXPONENT = 126


def pack(entries: Entries, layout: PayloadLayout, payload: Tensor) -> Tensor:
    """Overwrite `payload` `(layout.num_bytes,)` uint8 by `entries`, at most as many as the layout's capacity.

    Return what the format rounds off `(k,)`, for the memory. It is exact, but of signs: plus the value that `unpack`
    returns, it is the entry's value. Unused bytes are 0.
    """
    num, parts = len(entries.indices), layout.sections
    payload.zero_()
    if layout.uses_bitmap:
        _set_bits(payload[parts.bitmap], entries.indices)
    else:
        payload[parts.counts].view(torch.int32).copy_(_block_counts(entries.indices, layout))
        payload[parts.indices].view(torch.uint16)[:num] = entries.indices % BLOCK
    if layout.values == "float32":
        payload[parts.values].view(torch.float32)[:num] = entries.values
        return torch.zeros_like(entries.values)
    if layout.values == "sign":
        return _pack_signs(entries.values, payload[parts.unit], payload[parts.values])
    halves, unit = _round_to_half(entries.values)
    payload[parts.unit].view(torch.float32).fill_(unit)
    payload[parts.values].view(torch.float16)[:num] = halves
    return halves.float().mul_(-unit).add_(entries.values)


def unpack(payload: Tensor, layout: PayloadLayout) -> Entries:
    """Return the entries of `payload` `(layout.num_bytes,)` uint8, as `pack` wrote it."""
    parts = layout.sections
    if layout.uses_bitmap:
        indices = _find_bits(payload[parts.bitmap], layout.capacity)
    else:
        starts = _block_starts(layout, payload.device).repeat_interleave(payload[parts.counts].view(torch.int32))
        indices = payload[parts.indices].view(torch.uint16)[: len(starts)].int() + starts
    return Entries(indices, _values(payload.unsqueeze(0), layout)[0, : len(indices)])


def sum_unpacked(payloads: Tensor, layout: PayloadLayout, out: Tensor, *, scale: float = 1.0) -> None:
    """Overwrite `out` `(d,)` by `scale` times the sum of `payloads` `(N, layout.num_bytes)` uint8.

    Every entry is scaled, then added in the order of the payloads: ranks that pass them in one order hold equal bits.
    """
    assert len(out) == layout.d
    if out.is_cuda or layout.uses_bitmap:
        out.zero_()
        for payload in payloads:
            scatter_add(out, unpack(payload, layout), scale)
        return
    from trainers.exchange.kernels import cpu

    parts = layout.sections
    counts = payloads[:, parts.counts].contiguous().view(torch.int32)
    places = payloads[:, parts.indices].contiguous().view(torch.uint16)
    values = _values(payloads, layout)
    cpu.sum_blocks(out.numpy(), counts.numpy(), places.numpy(), values.numpy(), np.float32(scale))


def _values(payloads: Tensor, layout: PayloadLayout) -> Tensor:
    """Return the values `(N, capacity)` float32 of `payloads` `(N, layout.num_bytes)`, used or not."""
    section = payloads[:, layout.sections.values].contiguous()
    if layout.values == "float32":
        return section.view(torch.float32)
    unit = payloads[:, layout.sections.unit].contiguous().view(torch.float32)
    if layout.values == "sign":
        return unit - 2 * unit * _bits(section)[:, : layout.capacity]
    return section.view(torch.float16).float() * unit


def _pack_signs(values: Tensor, unit: Tensor, bits: Tensor) -> Tensor:
    """Write the mean magnitude of `values` `(k,)`, and a bit for each; return what that leaves of them `(k,)`."""
    magnitude = (values.abs() / max(1, len(values))).sum()  # divided first, or the sum may overflow
    unit.view(torch.float32).copy_(magnitude)
    _set_bits(bits, (values < 0).nonzero().flatten())
    return values - torch.where(values < 0, -magnitude, magnitude)


def _bits(words: Tensor) -> Tensor:
    """Return the bits of `words` `(N, n)` uint8 as 0 and 1 `(N, 8 n)`, the lowest of a byte first."""
    return (words.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=words.device) & 1).flatten(1)


def _round_to_half(values: Tensor) -> tuple[Tensor, float]:
    """Return `values` `(k,)` in units of a power of two, rounded to float16, and that unit."""
    largest = values.abs().max().item() if len(values) else 0.0
    exponent = TOP_EXPONENT - math.frexp(largest)[1]
    scale = math.ldexp(1.0, min(exponent, LARGEST_SCALE_EXPONENT))
    return (values * scale).half(), 1 / scale


def _block_counts(indices: Tensor, layout: PayloadLayout) -> Tensor:
    """Return how many of the ascending `indices` `(k,)` lie in each block `(num_blocks,)`."""
    places = torch.searchsorted(indices, _block_starts(layout, indices.device))
    return places.diff(append=places.new_tensor([len(indices)]))


def _block_starts(layout: PayloadLayout, device: torch.device) -> Tensor:
    return torch.arange(0, layout.d, BLOCK, dtype=torch.int32, device=device)


def _set_bits(bitmap: Tensor, indices: Tensor) -> None:
    """Set the bits at distinct `indices` `(k,)` in a clear `bitmap` of bytes."""
    # No two indices share a bit, so to add is to set.
    bitmap.index_add_(0, indices >> 3, (1 << (indices & 7)).to(torch.uint8))


def _find_bits(bitmap: Tensor, capacity: int) -> Tensor:
    """Return the places of the set bits, ascending, as int32; at most `capacity`."""
    if bitmap.is_cuda:
        return _bits(bitmap.unsqueeze(0)).flatten().nonzero().flatten().int()
    from trainers.exchange.kernels import cpu

    indices = torch.empty(capacity, dtype=torch.int32)
    return indices[: cpu.find_bits(bitmap.view(torch.int32).numpy(), indices.numpy())]
