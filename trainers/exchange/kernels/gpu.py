"""The GPU kernels, in Triton: import this module only where Triton is installed and a kernel is called."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainers.exchange.kernels.entries import Entries, Selected

#: Entries that one program works on.
BLOCK = 1024
#: Of which so many are set aside when they are first read. A block that sends more, over 12.5 %, is read again.
ASIDE = 128


@triton.jit
def _split(
    gradient, residual, kept, threshold, counts, aside_indices, aside_values, d, num_blocks,
    HAS_RESIDUAL: tl.constexpr, KEEPS: tl.constexpr, BLOCK: tl.constexpr, ASIDE: tl.constexpr,
):  # fmt: skip
    """Set aside what of gradient + residual reaches the threshold, a pointer to it, and keep the rest.

    `counts` `(2, num_blocks)` receives how many entries of a block do, and how many are not finite.
    """
    block = tl.program_id(0)
    places = block * BLOCK + tl.arange(0, BLOCK)
    inside = places < d
    vector = tl.load(gradient + places, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        vector += tl.load(residual + places, mask=inside, other=0.0)
    magnitudes = tl.abs(vector)
    hits = inside & (magnitudes >= tl.load(threshold))
    is_odd = (magnitudes != magnitudes) | (magnitudes == float("inf"))
    both = tl.sum(hits.to(tl.int32) + (is_odd.to(tl.int32) << 16))  # a program's threads wait for each other in a sum
    num_hits = both & 0xFFFF
    tl.store(counts + block, num_hits)
    tl.store(counts + num_blocks + block, both >> 16)
    taken = tl.where(num_hits <= ASIDE, hits, False)
    slots = block * ASIDE + tl.cumsum(hits.to(tl.int32), 0) - 1
    tl.store(aside_indices + slots, places, mask=taken)
    tl.store(aside_values + slots, vector, mask=taken)
    if KEEPS:
        tl.store(kept + places, tl.where(taken, 0.0, vector), mask=inside)


@triton.jit
def _gather(
    vector, threshold, counts, ends, aside_indices, aside_values, indices, values, d, capacity,
    KEEPS: tl.constexpr, BLOCK: tl.constexpr, ASIDE: tl.constexpr,
):  # fmt: skip
    """Write each block's hits so that its last one lands before `ends` `(num_blocks,)`; what finds no room is kept.

    `vector` is what `_split` kept, or the gradient if it kept nothing.
    """
    block = tl.program_id(0)
    num_hits = tl.load(counts + block)
    first = tl.load(ends + block) - num_hits
    if num_hits <= ASIDE:  # names of their own in each branch: in Triton a name has one shape
        order = tl.arange(0, ASIDE)
        is_set_aside = order < num_hits
        places_aside = tl.load(aside_indices + block * ASIDE + order, mask=is_set_aside, other=0)
        set_aside = tl.load(aside_values + block * ASIDE + order, mask=is_set_aside, other=0.0)
        fits = is_set_aside & (first + order < capacity)
        tl.store(indices + first + order, places_aside, mask=fits)
        tl.store(values + first + order, set_aside, mask=fits)
        if KEEPS:
            tl.store(vector + places_aside, set_aside, mask=is_set_aside & (first + order >= capacity))
    else:
        places = block * BLOCK + tl.arange(0, BLOCK)
        inside = places < d
        found = tl.load(vector + places, mask=inside, other=0.0)
        hits = inside & (tl.abs(found) >= tl.load(threshold))
        slots = first + tl.cumsum(hits.to(tl.int32), 0) - 1
        sent = hits & (slots < capacity)
        tl.store(indices + slots, places, mask=sent)
        tl.store(values + slots, found, mask=sent)
        if KEEPS:
            tl.store(vector + places, 0.0, mask=sent)


@triton.jit
def _scatter_add(out, indices, values, scale, num, d, BLOCK: tl.constexpr):
    """Add scaled values at distinct indices below d."""
    slots = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    places = tl.load(indices + slots, mask=slots < num, other=d)
    inside = places < d
    added = tl.load(values + slots, mask=inside, other=0.0) * scale
    tl.store(out + places, tl.load(out + places, mask=inside, other=0.0) + added, mask=inside)


def select(
    gradient: Tensor, residual: Tensor | None, threshold: Tensor, *, kept: Tensor | None, room: Entries
) -> Selected:
    """See `select.select`; `kept` None: what is not sent is nowhere kept. It may be the gradient itself.

    One pass over the vectors, and one over what was set aside; the order does not depend on which block runs first.
    """
    d, device = len(gradient), gradient.device
    num_blocks = triton.cdiv(d, BLOCK)
    counts = torch.empty(2, num_blocks, dtype=torch.int32, device=device)
    aside = (
        torch.empty(num_blocks * ASIDE, dtype=torch.int32, device=device),
        torch.empty(num_blocks * ASIDE, dtype=torch.float32, device=device),
    )
    into, sizes = gradient if kept is None else kept, {"KEEPS": kept is not None, "BLOCK": BLOCK, "ASIDE": ASIDE}
    _split[(num_blocks,)](
        gradient, gradient if residual is None else residual, into, threshold, counts, *aside, d, num_blocks,
        HAS_RESIDUAL=residual is not None, **sizes,
    )  # fmt: skip
    num_hits, num_odd = counts
    ends = num_hits.cumsum(0, dtype=torch.int32)  # of one row: along many, each is added up by a few threads
    _gather[(num_blocks,)](into, threshold, counts, ends, *aside, *room, d, len(room.indices), **sizes)
    return Selected(ends[-1], num_odd.max() == 0)


def scatter_add(out: Tensor, entries: Entries, scale: float) -> None:
    """See `scatter.scatter_add`."""
    num = len(entries.indices)
    # A fused multiply-add would round once, and no longer agree with the CPU.
    _scatter_add[(triton.cdiv(num, BLOCK),)](out, *entries, scale, num, len(out), BLOCK=BLOCK, enable_fp_fusion=False)
