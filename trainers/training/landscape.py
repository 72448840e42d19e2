"""Measure the loss of a new model around its weights: its value, its gradient, and its sharpness."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

#: Batches, of all ranks together, that are looked at.
NUM_BATCHES = 4
#: The step is so long, as a share of the weights.
STEP = 0.03


class Landscape(NamedTuple):
    """The loss of a model before its first step: means over some batches, and the sharpness of the sharpest of them.

    The sharpness of a batch is |g - g'| / |s|. Here g is its gradient, s a step of `STEP` times the weights along g,
    and g' the gradient after that step: the local smoothness of Malitsky and Mishchenko ("Adaptive gradient descent
    without descent", ICML 2020, section 2).
    """

    loss: float
    gradient: float  # its norm
    sharpness: float


@torch.no_grad()
def measured(
    parameters: Sequence[Tensor], slope: Callable[[int], tuple[float, Sequence[Tensor]]], num_batches: int
) -> Landscape | None:
    """Return what `num_batches` batches tell; None: a gradient is 0 or not finite, or the weights are 0.

    `slope` gives the loss of the batch of a number, and its gradient, at `parameters` as they are. These are moved
    meanwhile, and put back.
    """
    start = [each.clone() for each in parameters]
    length = STEP * _norm(start)
    losses, gradients, turns = list[float](), list[float](), list[float]()
    for number in range(num_batches):
        loss, before = slope(number)
        if not (gradient := _norm(before)) or not length:
            return None
        for parameter, each in zip(parameters, before, strict=True):
            parameter.sub_(each, alpha=length / gradient)
        turned = [after - each for after, each in zip(slope(number)[1], before, strict=True)]
        for parameter, place in zip(parameters, start, strict=True):
            parameter.copy_(place)
        losses.append(loss)
        gradients.append(gradient)
        turns.append(_norm(turned) / length)
    found = Landscape(_mean(losses), _mean(gradients), max(turns))
    return found if all(map(math.isfinite, (*found, *turns))) and found.sharpness > 0 else None


def together(of_ranks: Sequence[Landscape]) -> Landscape:
    """Return what the ranks have found together, each by as many batches."""
    losses, gradients, turns = zip(*of_ranks, strict=True)
    return Landscape(_mean(losses), _mean(gradients), max(turns))


def _mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(numbers)


def _norm(tensors: Sequence[Tensor]) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(each, dtype=torch.float64)) for each in tensors))
