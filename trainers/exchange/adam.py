"""Adam's moments, for exchanges that return the direction to step by (Kingma and Ba, 2015, Algorithm 1)."""

import math

import torch
from torch import Tensor

#: As torch's default.
EPSILON = 1e-8


class Moments:
    """The moments of `d` entries, equal on all ranks. Operations are those of `torch.optim.Adam`, bit for bit."""

    def __init__(self, like: Tensor, betas: tuple[float, float]) -> None:
        self._betas = betas
        self.first, self.second = torch.zeros_like(like), torch.zeros_like(like)  # m and v `(d,)`

    def follow(self, gradient: Tensor) -> None:
        """Take in the mean gradient `(d,)` of a step."""
        decay, decay_of_squares = self._betas
        self.first.lerp_(gradient, 1 - decay)
        self.second.mul_(decay_of_squares).addcmul_(gradient, gradient, value=1 - decay_of_squares)

    def direction(self, out: Tensor, num_gradients: int, num_squares: int) -> None:
        """Write m / (sqrt(v) + eps) to `out` `(d,)`, of moments without the bias of so few gradients and squares."""
        decay, _ = self._betas
        out.zero_().addcdiv_(self.first, self.root(num_squares), value=1 / (1 - decay**num_gradients))

    def root(self, num_squares: int, span: slice = slice(None)) -> Tensor:
        """Return sqrt(v) + eps of the entries at `span`, of v without the bias of so few squares."""
        _, decay = self._betas
        return self.second[span].sqrt().div_(math.sqrt(1 - decay**num_squares)).add_(EPSILON)
