"""Global top-k: the ranks' largest entries are summed pair by pair, up a tree (Shi et al., ICDCS 2019).

Published, a rank takes back only what is absent from the result: an entry that one merge drops and another keeps is
lost from four ranks on. Here who merges keeps what it drops, so that all memories and the result add up to all that
went in.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from trainers.exchange.compressors.topk import largest
from trainers.exchange.kernels.entries import Entries
from trainers.exchange.kernels.scatter import clear, places, take


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


def merge(mine: Entries, theirs: Entries, count: int, d: int) -> tuple[Entries, Entries]:
    """Return the `count` largest entries of the sum of two sparse vectors `(d,)`, and the others, for the memory."""
    indices, order = torch.cat([mine.indices, theirs.indices]).sort()
    values = torch.where(indices < d, torch.cat([mine.values, theirs.values])[order], 0.0)
    # What both have is there twice in succession: the second of them moves to the first, and is 0 then.
    is_second = indices.diff(prepend=indices.new_full((1,), -1)) == 0
    sums = values + torch.where(is_second, values, 0.0).roll(-1)
    sums = torch.where(is_second, 0.0, sums)
    kept = largest(sums, count)
    dropped = sums.clone()
    clear(dropped, kept)
    others = places(dropped != 0, len(dropped))
    return _at(kept, indices, sums, d), _at(others, indices, sums, d)


def _at(chosen: Tensor, indices: Tensor, values: Tensor, d: int) -> Entries:
    """Return those of some entries that are at `chosen`; one behind them is an unused slot."""
    return Entries(torch.cat([indices, indices.new_full((1,), d)])[chosen], take(values, chosen).values)
