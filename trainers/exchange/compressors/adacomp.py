"""AdaComp: from each bin of neighbours, what one more such step would make the largest (Chen et al., AAAI 2018)."""

import torch
from torch import Tensor
from torch.nn.functional import pad


def select(corrected: Tensor, gradient: Tensor, *, bin_size: int) -> tuple[Tensor, Tensor]:
    """Return the indices `(k,)` (int32, ascending) and values `(k,)` to send of a layer, given as two `(d,)`.

    A bin is a run of `bin_size` entries, the last one shorter. An entry is sent if |corrected + gradient| reaches the
    largest |corrected| of its bin; its value is the sign of `corrected` times the mean of the bins' largest. Of a bin
    of zeros nothing is sent, so k may be 0; it may also be d.
    """
    bins = pad(corrected, (0, -len(corrected) % bin_size)).view(-1, bin_size)
    ahead = pad(corrected + gradient, (0, -len(corrected) % bin_size)).view(-1, bin_size)
    most = torch.maximum(bins.amax(1), -bins.amin(1)).unsqueeze(1)
    indices = ((ahead.abs() >= most) & (most > 0)).flatten().nonzero().flatten()
    signs = torch.where(corrected[indices] >= 0, 1.0, -1.0)
    return indices.int(), signs * most.mean()
