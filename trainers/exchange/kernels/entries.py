"""What kernels take and return beside plain vectors."""

from typing import NamedTuple

import torch
from torch import Tensor


class Entries(NamedTuple):
    """Some entries of a vector: what select fills, what scatter adds, what a payload carries.

    Indices are distinct and ascending.
    """

    indices: Tensor  # (k,) int32
    values: Tensor  # (k,) float32

    @classmethod
    def empty(cls, capacity: int, device: torch.device | None = None) -> "Entries":
        """Return uninitialized room for `capacity` entries."""
        return cls(
            torch.empty(capacity, dtype=torch.int32, device=device),
            torch.empty(capacity, dtype=torch.float32, device=device),
        )

    def first(self, count: int) -> "Entries":
        """Return views of the first `count` entries, or of all where there are fewer."""
        return Entries(self.indices[:count], self.values[:count])


class Selected(NamedTuple):
    """What a selection found."""

    wanted: int  # entries that reached the threshold, whether or not there was room for them
    is_finite: bool  # whether no corrected entry was NaN or infinite


class Velocity(NamedTuple):
    """The memory of momentum correction."""

    momentum: Tensor  # (d,)
    velocity: Tensor  # (d,)
