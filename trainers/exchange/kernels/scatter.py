"""Scatter-add: decode a sparse payload into the sum over the ranks."""

import numpy as np
from torch import Tensor

from trainers.exchange.kernels import operators
from trainers.exchange.kernels.entries import Entries


def scatter_add(out: Tensor, entries: Entries, scale: float = 1.0) -> None:
    """Add `scale` times `entries` to `out` `(d,)`, float32, in place; the product is rounded before it is added.

    Indices are distinct, so the order within does not matter. The order of several payloads does: add them in the
    order of the ranks, and all ranks hold equal bits.
    """
    if out.is_cuda:
        operators.scatter_add(out, entries, scale)
        return
    from trainers.exchange.kernels import cpu

    assert len(entries.indices) == len(entries.values)
    cpu.scatter_add(out.numpy(), entries.indices.numpy(), entries.values.numpy(), np.float32(scale))
