"""The GPU kernels, in Triton: import this module only where Triton is installed and a kernel is called."""

import torch
import triton
import triton.language as tl
from torch import Tensor

#: Entries that one program works on.
BLOCK = 1024


@triton.jit
def _count(vector, threshold, counts, d, num_blocks, BLOCK: tl.constexpr):
    """Count in each block what reaches the threshold, and below that what is not finite; `counts` `(2, num_blocks)`."""
    block = tl.program_id(0)
    places = block * BLOCK + tl.arange(0, BLOCK)
    inside = places < d
    magnitudes = tl.abs(tl.load(vector + places, mask=inside, other=0.0))
    tl.store(counts + block, tl.sum((inside & (magnitudes >= threshold)).to(tl.int32)))
    is_odd = (magnitudes != magnitudes) | (magnitudes == float("inf"))
    tl.store(counts + num_blocks + block, tl.sum(is_odd.to(tl.int32)))


@triton.jit
def _gather(vector, threshold, ends, indices, values, d, capacity, BLOCK: tl.constexpr):
    """Write each block's hits so that its last one lands before `ends` `(num_blocks,)`, while there is room."""
    block = tl.program_id(0)
    places = block * BLOCK + tl.arange(0, BLOCK)
    inside = places < d
    found = tl.load(vector + places, mask=inside, other=0.0)
    hits = inside & (tl.abs(found) >= threshold)
    order = tl.cumsum(hits.to(tl.int32), 0)
    slots = tl.load(ends + block) - tl.sum(hits.to(tl.int32)) + order - 1
    wanted = hits & (slots < capacity)
    tl.store(indices + slots, places, mask=wanted)
    tl.store(values + slots, found, mask=wanted)


@triton.jit
def _scatter_add(out, indices, values, scale, num, BLOCK: tl.constexpr):
    """Add scaled values at distinct indices."""
    slots = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = slots < num
    targets = out + tl.load(indices + slots, mask=inside, other=0)
    added = tl.load(values + slots, mask=inside, other=0.0) * scale
    tl.store(targets, tl.load(targets, mask=inside, other=0.0) + added, mask=inside)


def compact(vector: Tensor, threshold: float, indices: Tensor, values: Tensor) -> tuple[int, bool]:
    """See `operators.compact`: counts, then writes, so that the order does not depend on which block runs first."""
    d = len(vector)
    num_blocks = triton.cdiv(d, BLOCK)
    counts = torch.empty(2, num_blocks, dtype=torch.int32, device=vector.device)
    _count[(num_blocks,)](vector, threshold, counts, d, num_blocks, BLOCK=BLOCK)
    ends = counts.cumsum(1, dtype=torch.int32)
    _gather[(num_blocks,)](vector, threshold, ends, indices, values, d, len(indices), BLOCK=BLOCK)
    wanted, num_odd = ends[:, -1].tolist()
    return wanted, num_odd == 0


def scatter_add(out: Tensor, indices: Tensor, values: Tensor, scale: float) -> None:
    """See `scatter.scatter_add`."""
    num = len(indices)
    # A fused multiply-add would round once, and no longer agree with the CPU.
    _scatter_add[(triton.cdiv(num, BLOCK),)](out, indices, values, scale, num, BLOCK=BLOCK, enable_fp_fusion=False)
