"""The multi-layer perceptron."""

import itertools
from collections.abc import Sequence

from torch import nn


def perceptron(widths: Sequence[int]) -> nn.Sequential:
    """Return linear layers from each width to the next, with ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
