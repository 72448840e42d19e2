"""Compare the weights that all ranks must hold alike: by a checksum in every evaluation, by name where it differs.

Gradients are exchanged, weights are not: what one rank does to its own stays unnoticed otherwise. Machines of different
kinds round differently, which moves weights by less than any step does, so weights need only be close.
"""

import logging
import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from trainers.exchange.node_links import NodeLinks
from trainers.methods.sync.shared.differing import differing
from trainers.training.likeness import named, sketch
from trainers.workload import WorkloadError

log = logging.getLogger("wiretune.equal_weights")

#: Bits of a checksum: float64 adds up the squares of 8,000 ranks exactly.
_BITS = 20
#: Sketches of weights that differ by less are close: relative to the larger number, or below this.
_CLOSE = 1e-3


def moments(sums: Tensor) -> Tensor:
    """Return a checksum of the integers `sums` `(n,)` and its square, in float64 `(2,)`, for `differ` to read."""
    checksum = zlib.crc32(sums.numpy().tobytes()) & (1 << _BITS) - 1
    return torch.tensor([checksum, checksum**2], dtype=torch.float64)


def differ(total: Tensor, num_ranks: int) -> bool:
    """Return whether the ranks' checksums have a variance, by the `total` of their moments `(2,)`."""
    mean, square = map(int, total.tolist())
    return num_ranks * square != mean**2


def require_close(weights: Mapping[str, Tensor], node_links: NodeLinks) -> None:
    """Raise WorkloadError for those of `weights` that a rank has far from the first rank's; warn of others. Collective.

    They are told apart by their norms and a random direction.
    """
    names = differing(weights, node_links)
    if not names:  # but what evaluations make of them does
        return
    mine = torch.tensor([sketch(weights[name])[1:] for name in names], dtype=torch.float64)
    first = mine.clone()
    node_links.tell(first)
    is_far = (~torch.isclose(mine, first, rtol=_CLOSE, atol=_CLOSE, equal_nan=True)).any(1).double()
    node_links.all_reduce_sum(is_far, {"control": is_far.nbytes})
    if far := [f"`{name}`" for name, number in zip(names, is_far.tolist(), strict=True) if number]:
        raise WorkloadError(
            f"workers have different values of what all hold alike{named(far)}: let `loss` change parameters in the "
            "same way on all workers, not depending on the batch, and keep what follows the batches in buffers"
        )
    log.warning(
        "workers have slightly different values of what all hold alike%s: machines of different kinds round "
        "differently; on machines of one kind, look for a `loss` that changes parameters by its own batch",
        named([f"`{name}`" for name in names]),
    )
