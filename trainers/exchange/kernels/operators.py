"""The kernels as torch operators, on any device; on a GPU, Triton does what operators would do in several passes.

None of them asks the host to wait for a GPU.
"""

import os
import shutil
import sysconfig
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from trainers.exchange.kernels.entries import Entries, Selected, Velocity


def needed_for(vector: Tensor) -> bool:
    """Return whether it is where the kernels compiled for a CPU do not reach it."""
    return vector.is_cuda


@cache
def has_triton() -> bool:
    """Return whether Triton can compile a kernel: it comes with torch for NVIDIA and AMD, but not with a C compiler.

    It builds what launches a kernel on the machine that runs it, against Python's own headers.
    """
    has_compiler = "CC" in os.environ or shutil.which("gcc") or shutil.which("clang")
    has_headers = Path(sysconfig.get_path("include", "posix_prefix"), "Python.h").exists()
    return bool(find_spec("triton") and has_compiler and has_headers)


def select(gradient: Tensor, residual: Tensor, threshold: Tensor, *, next_residual: Tensor, room: Entries) -> Selected:
    """See `select.select`."""
    if gradient.is_cuda and has_triton():
        return _split(gradient, residual, threshold, kept=next_residual, room=room)
    torch.add(gradient, residual, out=next_residual)
    return _move(next_residual, threshold, room)


def select_velocity(
    factors: tuple[float, float, float],
    vectors: tuple[Tensor, Velocity, Velocity],
    threshold: Tensor,
    room: Entries,
) -> Selected:
    """See `cpu.select_velocity`; `vectors` are the gradient, the memory and the next one."""
    decay, to_momentum, to_velocity = factors
    gradient, old, new = vectors
    # Every product is rounded before it is added, as on a CPU.
    torch.mul(old.momentum, decay, out=new.momentum).add_(gradient * to_momentum)
    torch.add(old.velocity, new.momentum, out=new.velocity).add_(gradient * to_velocity)
    return _move(new.velocity, threshold, room)


def compact(vector: Tensor, threshold: Tensor, room: Entries) -> Selected:
    """Copy entries of `vector` `(d,)` that reach `threshold` in magnitude to `room`, in ascending order."""
    if vector.is_cuda and has_triton():
        return _split(vector, None, threshold, kept=None, room=room)
    magnitudes = vector.abs()
    hits = magnitudes >= threshold
    room.indices.copy_(places(hits, len(room.indices)))
    room.values.copy_(take(vector, room.indices).values)
    return Selected(hits.sum(dtype=torch.int32), torch.isfinite(magnitudes.max()))


def places(hits: Tensor, capacity: int) -> Tensor:
    """Return the first `capacity` indices `(capacity,)` (int32) of what is true in `hits` `(d,)`; d in unused slots."""
    return torch.nonzero_static(hits, size=capacity, fill_value=len(hits)).flatten().int()


def take(vector: Tensor, indices: Tensor) -> Entries:
    """See `scatter.take`."""
    last = len(vector) - 1
    return Entries(indices, torch.where(indices <= last, vector[indices.clamp(max=last)], 0.0))


def clear(vector: Tensor, indices: Tensor) -> None:
    """See `scatter.clear`."""
    if not len(indices):
        return
    last = len(vector) - 1
    # Unused slots do as the first one does; where that is unused too, all write the last entry's own value.
    targets = torch.where(indices <= last, indices, indices[0]).clamp(max=last)
    vector[targets] = torch.where(indices[0] <= last, 0.0, vector[last])


def together(parts: Sequence[Entries], spans: Sequence[slice]) -> Entries:
    """See `scatter.together`."""
    d = max(span.stop for span in spans)
    moved = [
        torch.where(part.indices < span.stop - span.start, part.indices + span.start, d)
        for part, span in zip(parts, spans, strict=True)
    ]
    indices, order = torch.cat(moved).sort()  # or the unused slots of a part would be in between
    return Entries(indices, torch.cat([part.values for part in parts])[order])


def scatter_add(out: Tensor, entries: Entries, scale: float) -> None:
    """See `scatter.scatter_add`."""
    if out.is_cuda and has_triton():
        from trainers.exchange.kernels import gpu

        gpu.scatter_add(out, entries, scale)
    else:
        last = len(out) - 1
        added = torch.where(entries.indices <= last, entries.values * scale, 0.0)
        out.index_add_(0, entries.indices.clamp(max=last), added)


def _move(vector: Tensor, threshold: Tensor, room: Entries) -> Selected:
    """Move entries of `vector` to `room`: as `compact`, and what was copied becomes 0."""
    if vector.is_cuda and has_triton():
        return _split(vector, None, threshold, kept=vector, room=room)
    selected = compact(vector, threshold, room)
    clear(vector, room.indices)
    return selected


def _split(
    gradient: Tensor, residual: Tensor | None, threshold: Tensor, *, kept: Tensor | None, room: Entries
) -> Selected:
    from trainers.exchange.kernels import gpu

    return gpu.select(gradient, residual, threshold, kept=kept, room=room)
