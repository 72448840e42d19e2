"""Measure how sharp the loss of a new model is: how much its gradient turns on the way of a step."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

#: Batches, of all ranks together, of which the sharpest counts.
NUM_BATCHES = 4
#: The step is so long, as a share of the weights.
STEP = 0.03


@torch.no_grad()
def measured(
    parameters: Sequence[Tensor], gradient: Callable[[int], Sequence[Tensor]], num_batches: int
) -> float | None:
    """Return the largest sharpness of `num_batches` batches; None: a gradient is 0 or not finite, or the weights are 0.

    `gradient` gives that of the batch of a number, at `parameters` as they are. A batch's sharpness is |g - g'| / |s|,
    where s is a step of `STEP` times the weights along its gradient g, and g' its gradient after the step: the local
    smoothness of Malitsky and Mishchenko ("Adaptive gradient descent without descent", ICML 2020, section 2).
    `parameters` are moved meanwhile, and put back.
    """
    start = [each.clone() for each in parameters]
    length = STEP * _norm(start)
    found = list[float]()
    for number in range(num_batches):
        before = gradient(number)
        if not (steepness := _norm(before)) or not length:
            return None
        for parameter, slope in zip(parameters, before, strict=True):
            parameter.sub_(slope, alpha=length / steepness)
        turned = [after - slope for after, slope in zip(gradient(number), before, strict=True)]
        for parameter, place in zip(parameters, start, strict=True):
            parameter.copy_(place)
        found.append(_norm(turned) / length)
    return max(found) if all(map(math.isfinite, found)) and max(found) > 0 else None


def _norm(tensors: Sequence[Tensor]) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(each, dtype=torch.float64)) for each in tensors))
