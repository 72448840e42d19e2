"""A sparse vector: what select fills, what scatter adds, what a payload carries."""

from typing import NamedTuple

import torch
from torch import Tensor


class Entries(NamedTuple):
    """Some entries of a vector, with distinct, ascending indices."""

    indices: Tensor  # (k,) int32
    values: Tensor  # (k,) float32

    @classmethod
    def empty(cls, capacity: int, device: torch.device | None = None) -> "Entries":
        """Return uninitialised room for `capacity` entries."""
        return cls(
            torch.empty(capacity, dtype=torch.int32, device=device),
            torch.empty(capacity, dtype=torch.float32, device=device),
        )

    def first(self, count: int) -> "Entries":
        """Return views of the first `count` entries, or of all where there are fewer."""
        return Entries(self.indices[:count], self.values[:count])
