"""The result of one exchange, and checks that its values are finite."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Exchanged:
    """The result of a step's exchange, equal on all ranks that took part.

    If a rank steps by itself, or holds its gradient back, the result is its own. If the step `diverged`, the gradient
    in the buffer is useless, and no memory has changed.
    """

    loss: float = float("nan")  # mean over the ranks, or this rank's
    diverged: bool = False  # a loss or a gradient was not finite
    is_held: bool = False  # the gradient is accumulated for a later step: there is no update
    density: float | None = None  # mean share of entries sent; None: the exchange sends something of every entry
    is_of_node: bool = False  # no other node took part: the loss is the mean over this node's ranks
    is_left_out: bool = False  # of this rank alone: the average that it continues from leaves it out


DIVERGED = Exchanged(diverged=True)


def mean_density(steps: Sequence[Exchanged]) -> float | None:
    """Return the mean share of entries sent; None: no step sent some entries and kept others."""
    densities = [step.density for step in steps if step.density is not None]
    return math.fsum(densities) / len(densities) if densities else None


def agreed(losses: Sequence[Tensor], num_workers: int) -> Exchanged:
    """Return the result of a step from `losses`: for each bucket, the ranks' losses `(N,)` or their sum `(1,)`.

    A loss is NaN if something in its bucket was not finite. The host waits for a GPU here, after the last bucket, and
    nowhere earlier in the step.
    """
    means = [sum(bucket) / num_workers for bucket in torch.stack(list(losses)).tolist()]
    return Exchanged(loss=means[-1]) if all(map(math.isfinite, means)) else DIVERGED


def loss_if(finite: Tensor, loss: Tensor) -> Tensor:
    """Return `loss`, or NaN if `finite` (scalar) is false."""
    return torch.where(finite, loss, math.nan)


def all_finite(values: Tensor) -> Tensor:
    """Return whether all of `values` are finite, as a scalar on their device.

    A sum that overflows float32 counts as not finite.
    """
    return torch.isfinite(values.sum())


def is_finite(values: Tensor) -> bool:
    """Return `all_finite` as a bool; the host waits for the device."""
    return bool(all_finite(values))


def has_length(values: Tensor) -> Tensor:
    """Return whether the 2-norm of `values` is finite in float32, as a scalar on their device."""
    norm: Tensor = torch.linalg.vector_norm(values, dtype=torch.float64)
    return norm <= torch.finfo(torch.float32).max
