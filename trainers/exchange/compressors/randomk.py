"""Entries drawn at random, the same on all ranks, so that only values travel and can be summed on their way.

Stich et al., *Sparsified SGD with Memory*, NeurIPS 2018. Each entry is drawn with probability k / d, and at most once.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def random_entries(num_entries: int, count: int, *, seed: Sequence[int]) -> Tensor:
    """Return `count` indices (int32, ascending) below `num_entries`.

    `seed` is the run's, the step and the bucket: whoever has the same draws the same.
    """
    drawn = np.random.default_rng(seed).choice(num_entries, count, replace=False, shuffle=False)
    return torch.from_numpy(np.sort(drawn).astype(np.int32))


def random_block(num_entries: int, count: int, *, seed: Sequence[int]) -> Tensor:
    """Return the indices (int32, ascending) of `count` neighbours at a random place; the first follows the last.

    Far cheaper than single entries to draw, to read and to write.
    """
    start = int(np.random.default_rng(seed).integers(num_entries))
    num_wrapped = max(0, start + count - num_entries)
    runs = (torch.arange(num_wrapped), torch.arange(start, min(start + count, num_entries)))
    return torch.cat(runs).int()
