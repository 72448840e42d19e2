"""What compression left behind, kept for later steps (error feedback)."""

import torch
from torch import Tensor


class Residual:
    """Adds the unsent part of one step to the gradient of the next (Karimireddy et al., 2019, Algorithm 1).

    In units of the gradient, per rank, never averaged. `values` is `(d,)` float32.
    """

    def __init__(self, like: Tensor) -> None:
        self.values = torch.zeros_like(like)

    def add_to(self, gradient: Tensor) -> None:
        """Turn `gradient` `(d,)` into the corrected gradient, in place."""
        gradient.add_(self.values)

    def keep_unsent(self, corrected: Tensor, sent: Tensor) -> None:
        """Remember `corrected` `(d,)` but for the entries at `sent` `(k,)`."""
        self.values.copy_(corrected)
        self.values[sent] = 0.0

    def clear(self) -> None:
        """Forget everything: all was sent."""
        self.values.zero_()
