"""A sampled quantile of magnitudes: the threshold that a planned share of entries reaches."""

import numpy as np
import torch
from torch import Tensor

from trainers.exchange.kernels import operators

#: The smallest normal float32: zeros, and what float32 hardly tells from them, are never sent.
LEAST_THRESHOLD = torch.finfo(torch.float32).tiny
#: Entries sampled: 65 of them are beyond a density of 0.1 %.
SAMPLES = 65_536


def strided(vector: Tensor, of: int | None = None) -> Tensor:
    """Return a view of about 65,536 evenly spread entries of `vector` `(d,)`, or of all where there are fewer.

    Of a part of a vector of `of` entries, return its share of these. Sample the terms of a sum, and add the samples:
    that spares the sum.
    """
    # Odd, since a stride that divides a layer's width (mostly even) would only ever meet the same columns.
    return vector[:: max(1, ((of or len(vector)) // SAMPLES - 1) | 1)]


def reached_by(sample: Tensor, density: float) -> Tensor:
    """Return the magnitude (a scalar beside it) that a share `density` of `sample` `(n,)` reaches, at least one entry.

    What is not finite counts as largest.
    """
    rank = max(1, round(density * len(sample)))
    if operators.needed_for(sample):
        return sample.abs().kthvalue(len(sample) - rank + 1).values
    # numpy's selection is vectorized: 16 times as fast as torch's.
    place = len(sample) - rank
    return torch.from_numpy(np.partition(sample.abs().numpy(), place)[place : place + 1]).squeeze(0)
