"""Select: correct a gradient by a memory, and split it in one pass into what is sent and what stays.

Everything is out of place, for a step may turn out to be void: the old memory holds until all ranks agree. Vectors
are float32, contiguous, on one device, and those written to overlap no other. NaN reaches no threshold.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainers.exchange.kernels import operators
from trainers.exchange.kernels.entries import Entries, Selected, Velocity
from trainers.exchange.kernels.scatter import clear

#: Columns of the matrices that the CPU kernels work on: as many as a word has bits.
COLUMNS = 64


def select(
    gradient: Tensor, residual: Tensor | None, threshold: Tensor, *, next_residual: Tensor | None, room: Entries
) -> Selected:
    """Move entries of gradient + residual `(d,)` that reach `threshold` in magnitude to `room`, in ascending order.

    `threshold` is a scalar beside them, and `room` has unused slots alone.

    What does not reach it, or finds no room, becomes `next_residual` `(d,)`; what was moved is 0 there. Without a
    memory both residuals are None.
    """
    if residual is None or next_residual is None:
        assert residual is next_residual
        return operators.compact(gradient, threshold, room)
    if operators.needed_for(gradient):
        return operators.select(gradient, residual, threshold, next_residual=next_residual, room=room)
    from trainers.exchange.kernels import cpu

    return _by_rows(cpu.select, (gradient, residual, next_residual), threshold, room)


@dataclass(frozen=True)
class MomentumCorrection:
    """Momentum before selection (Lin et al., 2018, sections 3.1 and 3.2); the optimizer must apply none afterwards.

    u' = m u + g, v' = v + u', or u' = m (u + g), v' = v + u' + g with `nesterov`; what |v'| selects is sent.
    """

    coefficient: float  # m
    nesterov: bool = False
    masks: bool = True  # what is sent loses its momentum too ("momentum factor masking")

    @property
    def factors(self) -> tuple[float, float, float]:
        """Return (m, a, b) of u' = m u + a g, v' = v + u' + b g."""
        return (self.coefficient, self.coefficient, 1.0) if self.nesterov else (self.coefficient, 1.0, 0.0)

    def select(
        self, gradient: Tensor, state: Velocity, threshold: Tensor, *, next_state: Velocity, room: Entries
    ) -> Selected:
        """Move entries of the new velocity `(d,)` that reach `threshold` in magnitude to `room`, in ascending order.

        `next_state` receives the new momentum and velocity; what was moved is 0 in the velocity.
        """
        if operators.needed_for(gradient):
            selected = operators.select_velocity(self.factors, (gradient, state, next_state), threshold, room)
        else:
            from trainers.exchange.kernels import cpu

            kernel = partial(cpu.select_velocity, tuple(map(np.float32, self.factors)))
            selected = _by_rows(kernel, (gradient, *state, *next_state), threshold, room)
        if self.masks:
            clear(next_state.momentum, room.indices)
        return selected


def _by_rows(kernel: Callable[..., Any], vectors: tuple[Tensor, ...], threshold: Tensor, room: Entries) -> Selected:
    """Run a CPU kernel over full rows, then over the short last one."""
    d = len(vectors[0])
    # The kernels check no bounds.
    assert all(len(vector) == d for vector in vectors) and len(room.indices) == len(room.values)
    entries = (room.indices.numpy(), room.values.numpy())
    full, cutoff = d - d % COLUMNS, threshold.float().numpy()[()]
    wanted, is_finite = 0, True
    for start, stop, columns in ((0, full, COLUMNS), (full, d, d - full)):
        if start < stop:
            rows = tuple(vector[start:stop].view(-1, columns).numpy() for vector in vectors)
            wanted, is_part_finite = kernel(rows, cutoff, start, entries, wanted)
            is_finite = is_finite and is_part_finite
    return Selected(torch.tensor(wanted, dtype=torch.int32), torch.tensor(is_finite))
