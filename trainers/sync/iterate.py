"""What the ranks average, as one vector: the trained parameters, and with Schedule-Free its z behind them."""

from collections.abc import Sequence

import torch
from torch import Tensor


class Iterate:
    """Live tensors, read and written as vectors `(n,)`; the first `num_parameters` entries are the parameters."""

    def __init__(self, tensors: Sequence[Tensor], *, num_parameters: int) -> None:
        self._tensors = [tensor.detach() for tensor in tensors]
        self._sizes = [tensor.numel() for tensor in tensors]
        self.shapes = [tuple(tensor.shape) for tensor in tensors]
        self.num_parameters = num_parameters

    def read(self) -> Tensor:
        """Return a copy `(n,)`."""
        return torch.cat([tensor.reshape(-1) for tensor in self._tensors])

    def write(self, values: Tensor) -> None:
        """Set all entries to `values` `(n,)`."""
        torch._foreach_copy_(self._tensors, self._parts(values))

    def add(self, values: Tensor, factor: float) -> None:
        """Add `factor` x `values` `(n,)`."""
        torch._foreach_add_(self._tensors, self._parts(values), alpha=factor)

    def _parts(self, values: Tensor) -> list[Tensor]:
        parts = torch.split(values, self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
