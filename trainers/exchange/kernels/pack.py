"""Pack: entries as the bytes of a payload, whose size all ranks know, and back.

float16 values are multiples of one power of two per payload, so large and small gradients keep float16's 11 bits.
Signs stand for the mean magnitude of a payload's entries, which is the nearest to them. What rounding takes from a
value goes back to the memory.
"""

import numpy as np
import torch
from torch import Tensor

from trainers.exchange.kernels import operators
from trainers.exchange.kernels.entries import Entries
from trainers.exchange.kernels.scatter import scatter_add
from trainers.traffic.payload_layout import BLOCK, PayloadLayout

#: The largest magnitude is scaled to [2^14, 2^15): below float16's 65,504 with all that rounding may add.
TOP_EXPONENT = 15
#: Scales stop here, so that they and their inverses are normal float32.
LARGEST_SCALE_EXPONENT = 126
#: Of the bits of a float32: what is added to the exponent, and the digits behind it.
FLOAT32_BIAS, FLOAT32_DIGITS = 127, 23


def pack(entries: Entries, layout: PayloadLayout, payload: Tensor) -> Tensor:
    """Overwrite `payload` `(layout.num_bytes,)` uint8 by `entries`, in at most as many slots as the layout's capacity.

    Return what the format rounds off `(k,)`, for the memory. It is exact, but of signs: plus the value that `unpack`
    returns, it is the entry's value. Unused bytes are 0.
    """
    num, parts = len(entries.indices), layout.sections
    indices, is_used = entries.indices, entries.indices < layout.d
    values = torch.where(is_used, entries.values, 0.0)
    payload.zero_()
    if layout.uses_bitmap:
        _set_bits(payload[parts.bitmap], indices.clamp(max=layout.d - 1), is_used)
    else:
        edges = _block_edges(layout, indices.device)
        payload[parts.counts].view(torch.int32).copy_(torch.searchsorted(indices, edges).diff())
        # BLOCK is a power of two, and a remainder would take 15 times as long.
        payload[parts.indices].view(torch.uint16)[:num] = (indices & BLOCK - 1).mul_(is_used)
    if layout.values == "float32":
        payload[parts.values].view(torch.float32)[:num] = values
        return torch.zeros_like(values)
    if layout.values == "sign":
        return _pack_signs(values, is_used.sum(), payload[parts.unit], payload[parts.values])
    unit = unit_for(values)
    halves = (values * unit.reciprocal()).half()
    payload[parts.unit].view(torch.float32).copy_(unit)
    payload[parts.values].view(torch.float16)[:num] = halves
    return halves.float().mul_(-unit).add_(values)


def unpack(payload: Tensor, layout: PayloadLayout) -> Entries:
    """Return the entries of `payload` `(layout.num_bytes,)` uint8, as `pack` wrote it, in `layout.capacity` slots."""
    parts = layout.sections
    if layout.uses_bitmap:
        indices = _find_bits(payload[parts.bitmap], layout)
    else:
        counts = payload[parts.counts].view(torch.int32)
        in_each = torch.cat([counts, layout.capacity - counts.sum(0, True, dtype=torch.int32)])
        starts = _block_edges(layout, payload.device).repeat_interleave(in_each, output_size=layout.capacity)
        indices = payload[parts.indices].view(torch.uint16).int() + starts
    return Entries(indices, _values(payload.unsqueeze(0), layout)[0])


def sum_unpacked(payloads: Tensor, layout: PayloadLayout, out: Tensor, *, scale: float = 1.0) -> None:
    """Overwrite `out` `(d,)` by `scale` times the sum of `payloads` `(N, layout.num_bytes)` uint8.

    Every entry is scaled, then added in the order of the payloads: ranks that pass them in one order hold equal bits.
    """
    assert len(out) == layout.d
    if operators.needed_for(out) or layout.uses_bitmap:
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


def _pack_signs(values: Tensor, count: Tensor, unit: Tensor, bits: Tensor) -> Tensor:
    """Write the mean magnitude of `count` of `values` `(k,)`, the others 0, and a bit for each.

    Return what that leaves of them `(k,)`.
    """
    magnitude = (values.abs() / count.clamp(min=1)).sum()  # divided first, or the sum may overflow
    unit.view(torch.float32).copy_(magnitude)
    _set_bits(bits, torch.arange(len(values), device=values.device), values < 0)
    return values - torch.where(values < 0, -magnitude, magnitude)


def _bits(words: Tensor) -> Tensor:
    """Return the bits of `words` `(N, n)` uint8 as 0 and 1 `(N, 8 n)`, the lowest of a byte first."""
    return (words.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=words.device) & 1).flatten(1)


def unit_for(values: Tensor) -> Tensor:
    """Return the power of two (scalar) that float16 multiples of hold `values` `(k,)` best."""
    largest = values.abs().amax() if len(values) else values.new_zeros(())
    exponent = torch.where(largest.isfinite(), largest.frexp().exponent, 0) - TOP_EXPONENT
    # By its bits: not every device's power function returns powers of two exactly.
    return (exponent.clamp(min=-LARGEST_SCALE_EXPONENT) + FLOAT32_BIAS << FLOAT32_DIGITS).view(torch.float32)


def _block_edges(layout: PayloadLayout, device: torch.device) -> Tensor:
    """Return where blocks start, and d `(num_blocks + 1,)`, as int32."""
    blocks = torch.arange(layout.num_blocks + 1, device=device)
    return (blocks * BLOCK).clamp(max=layout.d).int()


def _set_bits(bitmap: Tensor, indices: Tensor, are_set: Tensor) -> None:
    """Set bits at `indices` `(k,)` in a clear `bitmap` of bytes where `are_set` `(k,)`; these indices are distinct."""
    # No two of them share a bit, so to add is to set.
    bitmap.index_add_(0, indices >> 3, (are_set << (indices & 7)).to(torch.uint8))


def _find_bits(bitmap: Tensor, layout: PayloadLayout) -> Tensor:
    """Return the places of the set bits, ascending, as int32 `(capacity,)`; unused slots hold d."""
    if operators.needed_for(bitmap):
        return operators.places(_bits(bitmap.unsqueeze(0))[0, : layout.d], layout.capacity)
    from trainers.exchange.kernels import cpu

    indices = torch.full((layout.capacity,), layout.d, dtype=torch.int32)
    cpu.find_bits(bitmap.view(torch.int32).numpy(), indices.numpy())
    return indices
