"""The two kernels of a sparse exchange: select and scatter-add. On a CPU numpy selects faster than torch."""

import numpy as np
import torch
from torch import Tensor


def select(values: Tensor, threshold: float) -> Tensor:
    """Return the indices `(k,)` (int32, ascending) of entries of `values` `(d,)` with |v| >= `threshold`."""
    if values.is_cuda:
        return (values.abs() >= threshold).nonzero().flatten().int()
    hits = np.flatnonzero(np.abs(values.numpy()) >= np.float32(threshold))
    return torch.from_numpy(hits.astype(np.int32))


def scatter_add(out: Tensor, indices: Tensor, values: Tensor) -> None:
    """Add `values` `(k,)` to `out` `(d,)` at `indices` `(k,)`, in place.

    The indices are distinct, so the result does not depend on the order of additions.
    """
    out.index_add_(0, indices, values)
