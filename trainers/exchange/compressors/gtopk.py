"""Global top-k: the ranks' largest entries are summed pair by pair, up a tree (Shi et al., ICDCS 2019).

Published, a rank takes back only what is absent from the result: an entry that one merge drops and another keeps is
lost from four ranks on. Here who merges keeps what it drops, so that all memories and the result add up to all that
went in.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from trainers.exchange.compressors.topk import largest

#: Indices `(k,)` (int32, ascending) and values `(k,)` (float32).
Sparse = tuple[Tensor, Tensor]


class Transfer(NamedTuple):
    """A rank sends its sum, and is done."""

    sender: int
    receiver: int


def merge_rounds(num_workers: int) -> list[list[Transfer]]:
    """Return who sends to whom in each of ceil(log2 N) rounds; rank 0 ends up with the sum. Any N will do."""
    strides = [2**power for power in range((num_workers - 1).bit_length())]
    return [
        [Transfer(receiver + stride, receiver) for receiver in range(0, num_workers - stride, 2 * stride)]
        for stride in strides
    ]


def merge(mine: Sparse, theirs: Sparse, count: int) -> tuple[Sparse, Sparse]:
    """Return the `count` largest entries of the sum of two sparse vectors, and the others, for the memory."""
    indices, places = torch.unique(torch.cat([mine[0], theirs[0]]), return_inverse=True)
    sums = mine[1].new_zeros(len(indices)).index_add_(0, places, torch.cat([mine[1], theirs[1]]))
    is_kept = torch.zeros_like(indices, dtype=torch.bool)
    is_kept[largest(sums, count) if len(sums) > count else slice(None)] = True
    return (indices[is_kept], sums[is_kept]), (indices[~is_kept], sums[~is_kept])
