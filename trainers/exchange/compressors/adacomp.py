"""AdaComp: from each bin of neighbours, what one more such step would make the largest (Chen et al., AAAI 2018)."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from trainers.exchange.kernels.compiled import compiled_later


def select(corrected: Tensor, gradient: Tensor, *, bin_size: int) -> tuple[Tensor, Tensor]:
    """Return the indices `(k,)` (int32, ascending) and values `(k,)` to send of a layer, given as two `(d,)`.

    A bin is a run of `bin_size` entries, the last one shorter. An entry is sent if |corrected + gradient| reaches the
    largest |corrected| of its bin; its value is the sign of `corrected` times the mean of the bins' largest. Of a bin
    of zeros nothing is sent, so k may be 0; it may also be d.
    """
    if corrected.is_cuda:
        indices, scale = select_by_torch(corrected, gradient, bin_size)
    else:
        found, scale = _select(corrected.numpy(), gradient.numpy(), bin_size)
        indices = torch.from_numpy(found)
    return indices, torch.where(corrected[indices] >= 0, scale, -scale)


def select_by_torch(corrected: Tensor, gradient: Tensor, bin_size: int) -> tuple[Tensor, float]:
    """Return the indices `(k,)` of what is sent, and the magnitude of all values."""
    missing = -len(corrected) % bin_size
    bins, ahead = (pad(each, (0, missing)).view(-1, bin_size).abs() for each in (corrected, corrected + gradient))
    most = bins.amax(1)
    hits = (ahead >= most.unsqueeze(1)) & (most > 0).unsqueeze(1)
    return hits.flatten().nonzero().flatten().int(), most.mean().item()


@compiled_later
def _select(
    corrected: NDArray[np.float32], gradient: NDArray[np.float32], bin_size: int
) -> tuple[NDArray[np.int32], float]:
    found, count, sum_of_most = np.empty(len(corrected), np.int32), 0, 0.0
    for start in range(0, len(corrected), bin_size):
        mine, step = corrected[start : start + bin_size], gradient[start : start + bin_size]
        most = np.float32(0.0)
        for i in range(len(mine)):
            most = max(most, abs(mine[i]))
        sum_of_most += float(most)
        for i in range(len(mine)):
            if abs(mine[i] + step[i]) >= most > 0:
                found[count] = start + i
                count += 1
    return found[:count].copy(), sum_of_most / -(-len(corrected) // bin_size)
