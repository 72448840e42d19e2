"""The largest entries of a vector, exactly.

On a CPU a sample tells about where the cut-off is, and only what reaches that is sorted out: that takes a tenth of the
time of `torch.topk`.
"""

import numpy as np
import torch
from torch import Tensor

from trainers.exchange.kernels import operators

#: Entries sampled for the first cut-off of an exact selection.
SAMPLES = 65_536
#: So many standard deviations of a sampled count are added to it: the cut-off is hardly ever too high.
MARGIN = 4.0
#: Zeros, and what float32 hardly tells from them, are never sent.
LEAST = torch.finfo(torch.float32).tiny


def largest(values: Tensor, count: int) -> Tensor:
    """Return the indices `(k,)` of the `count` largest magnitudes of `values` `(d,)`, no zeros, as `Entries` has them.

    Of equal magnitudes at the cut-off, any are taken.
    """
    magnitudes = values.abs()
    if operators.needed_for(values):
        return by_torch(magnitudes, count)
    sample = magnitudes[:: _stride(len(values), SAMPLES)]
    expected = count * len(sample) / len(values)
    rank = max(1, round(expected + MARGIN * expected**0.5))
    place = max(0, len(sample) - rank)  # a rank beyond the sample means its last
    candidates = _reaching(magnitudes, float(np.partition(sample.numpy(), place)[place]))
    if len(candidates) < count:
        candidates = _reaching(magnitudes, LEAST)
    return _largest_of(magnitudes, candidates, count)


def by_torch(magnitudes: Tensor, count: int) -> Tensor:
    """Return what `largest` does, in `count` slots, or as many as there are magnitudes `(d,)`."""
    found = magnitudes.topk(min(count, len(magnitudes)), sorted=False)
    return torch.where(found.values >= LEAST, found.indices, len(magnitudes)).sort().values.int()


def _stride(num_entries: int, num_samples: float) -> int:
    """Return the largest odd stride that takes `num_samples`, or more.

    Odd, since one that divides a layer's width (mostly even) would only ever meet the same columns.
    """
    return max(1, int((num_entries / num_samples + 1) / 2) * 2 - 1)


def _reaching(magnitudes: Tensor, threshold: float) -> Tensor:
    """Return the indices, ascending, of what is at least `threshold`, and not zero."""
    hits = magnitudes >= max(threshold, LEAST)
    return torch.from_numpy(np.flatnonzero(hits.numpy()))  # up to ten times as fast as torch's, where they are few


def _largest_of(magnitudes: Tensor, candidates: Tensor, count: int) -> Tensor:
    """Return those of `candidates`, ascending indices, that have the `count` largest magnitudes."""
    if len(candidates) <= count:
        return candidates.int()
    found = magnitudes[candidates].numpy()
    chosen = torch.from_numpy(np.sort(np.argpartition(found, -count)[-count:]))
    return candidates[chosen].int()
