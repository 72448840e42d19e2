"""The types that kernels take and return beside plain vectors."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Entries(NamedTuple):
    """Some entries of a vector `(d,)`: what select fills, what scatter adds, what a payload carries.

    Indices are distinct and ascending. Slots behind the last entry may be unused: their index is d or larger, and their
    value means nothing. So a GPU works on as many slots as there is room for, and the host need not ask it how many
    entries it found.
    """

    indices: Tensor  # (k,) int32
    values: Tensor  # (k,) float32

    @classmethod
    def room(cls, capacity: int, d: int, device: torch.device | None = None) -> "Entries":
        """Return `capacity` unused slots for entries of a vector `(d,)`."""
        return cls(
            torch.full((capacity,), d, dtype=torch.int32, device=device),
            torch.zeros(capacity, device=device),
        )

    def used(self, d: int) -> "Entries":
        """Return views of the slots in use for a vector `(d,)`; of entries in host memory."""
        count = int(np.searchsorted(self.indices.numpy(), np.int32(d)))  # of another type, it would convert all indices
        return Entries(self.indices[:count], self.values[:count])


class Selected(NamedTuple):
    """The result of a selection: scalars beside the vectors."""

    wanted: Tensor  # int32: entries that reached the threshold, whether or not there was room for them
    is_finite: Tensor  # bool: whether no corrected entry was NaN or infinite


class Velocity(NamedTuple):
    """The memory of momentum correction."""

    momentum: Tensor  # (d,)
    velocity: Tensor  # (d,)
