"""What all ranks know after an exchange, and how a step that is not finite is told."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Exchanged:
    """Equal on all ranks. After `diverged` the gradient in the buffer is of no use, and no memory has changed."""

    loss: float = float("nan")  # mean over the ranks
    diverged: bool = False  # a loss or a gradient was not finite
    is_held: bool = False  # the gradient waits for those of later steps: there is no update
    density: float | None = None  # mean share of entries sent; None: the exchange sends something of each


DIVERGED = Exchanged(diverged=True)


def mean_density(steps: Sequence[Exchanged]) -> float | None:
    """Return the mean share of entries sent; None: no step sent some entries and kept others."""
    densities = [step.density for step in steps if step.density is not None]
    return math.fsum(densities) / len(densities) if densities else None


def is_finite(values: Tensor) -> bool:
    """Whether no entry of `values` is NaN or infinite; a sum beyond float32's range counts as infinite."""
    return bool(torch.isfinite(values.sum()))


def has_length(values: Tensor) -> bool:
    """Whether the 2-norm of `values` is finite, in float32's range."""
    norm = torch.linalg.vector_norm(values, dtype=torch.float64)
    return bool(norm <= torch.finfo(torch.float32).max)


def loss_if(finite: bool, loss: Tensor) -> float:
    """Return what a rank tells the others: the scalar `loss`, or NaN if its gradient is not `finite`."""
    return float(loss) if finite else math.nan
