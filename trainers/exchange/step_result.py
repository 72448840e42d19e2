"""The result of an exchange that all ranks know, and the sign of a step that is not finite."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Exchanged:
    """Equal on all ranks that have exchanged something; of a step that a rank takes by itself, or holds, its own.

    After `diverged` the gradient in the buffer is of no use, and no memory has changed.
    """

    loss: float = float("nan")  # mean over the ranks, or this rank's
    diverged: bool = False  # a loss or a gradient was not finite
    is_held: bool = False  # the gradient waits for those of later steps: there is no update
    density: float | None = None  # mean share of entries sent; None: the exchange sends something of each
    is_of_node: bool = False  # no other node took part: the loss is that of this one's ranks
    is_left_out: bool = False  # this rank's own: it goes on from an average that it has no part in


DIVERGED = Exchanged(diverged=True)


def mean_density(steps: Sequence[Exchanged]) -> float | None:
    """Return the mean share of entries sent; None: no step sent some entries and kept others."""
    densities = [step.density for step in steps if step.density is not None]
    return math.fsum(densities) / len(densities) if densities else None


def agreed(losses: Sequence[Tensor], num_workers: int) -> Exchanged:
    """Return the verdict on a step from `losses`, of each bucket the ranks' own `(N,)` or their sum `(1,)`.

    They are NaN where something was not finite. Here, behind the last bucket, the host first waits for a GPU: until
    then it only asks for work.
    """
    means = [sum(bucket) / num_workers for bucket in torch.stack(list(losses)).tolist()]
    return Exchanged(loss=means[-1]) if all(map(math.isfinite, means)) else DIVERGED


def loss_if(finite: Tensor, loss: Tensor) -> Tensor:
    """Return `loss`, or NaN in its place where `finite` (scalar) is false."""
    return torch.where(finite, loss, math.nan)


def all_finite(values: Tensor) -> Tensor:
    """Return whether all of `values` are finite, as a scalar beside them; a sum beyond float32 is infinite."""
    return torch.isfinite(values.sum())


def is_finite(values: Tensor) -> bool:
    """As `all_finite`; the host waits for it."""
    return bool(all_finite(values))


def has_length(values: Tensor) -> Tensor:
    """Return whether the 2-norm of `values` is finite, in float32's range, as a scalar beside them."""
    norm: Tensor = torch.linalg.vector_norm(values, dtype=torch.float64)
    return norm <= torch.finfo(torch.float32).max
