"""Scatter-add: decode a sparse payload into the sum over the ranks."""

import numpy as np
from torch import Tensor

from trainers.exchange.kernels.entries import Entries


def scatter_add(out: Tensor, entries: Entries, scale: float = 1.0) -> None:
    """Add `scale` times `entries` to `out` `(d,)` in place: out[i] += scale * value, rounded twice.

    Their indices are distinct, so the result does not depend on the order within; over several payloads it does:
    add them in the order of the ranks, and all ranks hold equal bits.
    """
    if not out.is_cuda:
        from trainers.exchange.kernels import cpu

        cpu.scatter_add(out.numpy(), entries.indices.numpy(), entries.values.numpy(), np.float32(scale))
        return
    out.index_add_(0, entries.indices, entries.values * scale)
