"""The kernels as torch operators, on any device; on a GPU, Triton does what operators would do in several passes."""

import math
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from trainers.exchange.kernels.entries import Entries, Selected, Velocity


@cache
def has_triton() -> bool:
    """Whether Triton is installed, as it is with torch for NVIDIA and AMD."""
    return find_spec("triton") is not None


def select(gradient: Tensor, residual: Tensor, threshold: float, *, next_residual: Tensor, room: Entries) -> Selected:
    """See `select.select`."""
    if gradient.is_cuda and has_triton():
        return _split(gradient, residual, threshold, kept=next_residual, room=room)
    torch.add(gradient, residual, out=next_residual)
    return _take(next_residual, threshold, room)


def select_velocity(
    factors: tuple[float, float, float],
    vectors: tuple[Tensor, Velocity, Velocity],
    threshold: float,
    room: Entries,
) -> Selected:
    """See `cpu.select_velocity`; `vectors` are the gradient, the memory and the next one."""
    decay, to_momentum, to_velocity = factors
    gradient, old, new = vectors
    # Every product is rounded before it is added, as on a CPU.
    torch.mul(old.momentum, decay, out=new.momentum).add_(gradient * to_momentum)
    torch.add(old.velocity, new.momentum, out=new.velocity).add_(gradient * to_velocity)
    return _take(new.velocity, threshold, room)


def compact(vector: Tensor, threshold: float, room: Entries) -> Selected:
    """Copy entries of `vector` `(d,)` that reach `threshold` in magnitude to `room`, in ascending order."""
    if vector.is_cuda and has_triton():
        return _split(vector, None, threshold, kept=None, room=room)
    magnitudes = vector.abs()
    hits = (magnitudes >= threshold).nonzero().flatten()
    sent = hits[: len(room.indices)]
    room.indices[: len(sent)] = sent
    room.values[: len(sent)] = vector[sent]
    return Selected(len(hits), math.isfinite(magnitudes.max()))


def scatter_add(out: Tensor, entries: Entries, scale: float) -> None:
    """See `scatter.scatter_add`."""
    if out.is_cuda and has_triton():
        from trainers.exchange.kernels import gpu

        gpu.scatter_add(out, *entries, scale)
    else:
        out.index_add_(0, entries.indices, entries.values * scale)


def _take(vector: Tensor, threshold: float, room: Entries) -> Selected:
    """Move entries of `vector` to `room`: as `compact`, and what was copied becomes 0."""
    if vector.is_cuda and has_triton():
        return _split(vector, None, threshold, kept=vector, room=room)
    selected = compact(vector, threshold, room)
    vector[room.indices[: selected.wanted]] = 0.0
    return selected


def _split(
    gradient: Tensor, residual: Tensor | None, threshold: float, *, kept: Tensor | None, room: Entries
) -> Selected:
    from trainers.exchange.kernels import gpu

    return Selected(*gpu.select(gradient, residual, threshold, kept=kept, indices=room.indices, values=room.values))
