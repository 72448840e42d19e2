"""Compare the weights that all ranks must hold alike: by a checksum in every evaluation, by name where it differs.

Gradients are exchanged, weights are not: what one rank does to its own stays unnoticed otherwise. Machines of different
kinds round differently. A step by entries moves weights by no more than that, so weights that are far apart are a fault
of the job. Muon and factors that each rank computes by itself amplify it, so nothing follows from the distance there.
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
#: Weights are close if they differ by less: relative to their norm, or below this.
_CLOSE = 1e-3


def moments(sums: Tensor, *, is_known: bool = False) -> Tensor:
    """Return a checksum of the integers `sums` `(n,)`, its square, and `is_known`, in float64 `(3,)`.

    `differ` reads their total. Known is of the ranks that they may differ, or do.
    """
    checksum = zlib.crc32(sums.numpy().tobytes()) & (1 << _BITS) - 1
    return torch.tensor([checksum, checksum**2, is_known], dtype=torch.float64)


def differ(total: Tensor, num_ranks: int) -> bool:
    """Return whether the ranks' checksums have a variance that none knows of, by the `total` of their moments `(3,)`.

    One that has joined later may not know of it: all of them must come to the same.
    """
    mean, square, num_knowing = map(int, total.tolist())
    return not num_knowing and num_ranks * square != mean**2


def are_close(mine: Tensor, others: Tensor) -> Tensor:
    """Return which rows of norms and components `(n, 2)` are close, as booleans `(n,)`."""
    distance = (mine - others).abs()  # NaN where both are infinite
    are_equal = torch.isclose(mine, others, rtol=0.0, atol=0.0, equal_nan=True)
    return (are_equal | (distance <= _CLOSE * (1 + others[:, :1]))).all(1)


def require_close(weights: Mapping[str, Tensor], node_links: NodeLinks, *, refuses: bool) -> None:
    """Warn of those of `weights` that differ between the ranks; collective.

    Raises WorkloadError for those that a rank has far from the first rank's, if each rank `refuses` them. They are told
    apart by their norms and their components along a random direction.
    """
    names = differing(weights, node_links)
    if not names:  # but what evaluations make of them does
        return
    mine = torch.tensor([norm_and_component(weights[name]) for name in names], dtype=torch.float64)
    first = mine.clone()
    node_links.tell(first)
    found = torch.cat([~are_close(mine, first), torch.tensor([not refuses])]).double()
    node_links.all_reduce_sum(found, {"control": found.nbytes})
    *num_far, num_lenient = found.tolist()
    far = [f"`{name}`" for name, number in zip(names, num_far, strict=True) if number]
    if far and not num_lenient:
        raise WorkloadError(
            f"workers have different values of what all hold alike{named(far)}: let `loss` change parameters in the "
            "same way on all workers, not depending on the batch, and keep what follows the batches in buffers"
        )
    log.warning(
        "workers have different values of what all hold alike%s: machines of different kinds round differently; on "
        "machines of one kind, look for a `loss` that changes parameters by its own batch. Later differences are not "
        "told",
        named([f"`{name}`" for name in names]),
    )


def norm_and_component(tensor: Tensor) -> tuple[float, float]:
    """Return the norm and the component along a random direction: of a tensor near zero, both are."""
    _, norm, direction = sketch(tensor)
    return norm, norm * direction
