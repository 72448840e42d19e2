"""Handles of a user's own loop have a state in common, which each rank saves and loads."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from trainers.snapshot import Stateful, load_scalars, scalars_of, tensors_of


def rank() -> int:
    """Return the rank of this process in the default group; 0 without one."""
    return dist.get_rank() if dist.is_initialized() else 0


def num_ranks() -> int:
    """Return the number of ranks in the default group; 1 without one."""
    return dist.get_world_size() if dist.is_initialized() else 1


class Handle:
    """The state of one model's exchange, of named parts. It is this rank's own: each rank saves and loads its."""

    def __init__(self, parts: Mapping[str, Stateful]) -> None:
        self._parts = parts
        self._place = {"rank": rank(), "num_ranks": num_ranks()}

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's memories and what goes with them: tensors, JSON-compatible scalars, and whose they are."""
        tensors = {name: tensor.clone() for name, tensor in tensors_of(self._parts).items()}
        return {"tensors": tensors, "scalars": scalars_of(self._parts), **self._place}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to `state`, which this rank of as many ranks has saved; raises ValueError if it is not like that."""
        if conflict := self.conflict(state):
            raise ValueError(conflict)
        for name, tensor in tensors_of(self._parts).items():  # of a dense exchange there are none
            tensor.copy_(state["tensors"][name])
        load_scalars(self._parts, state["scalars"])

    def conflict(self, state: Mapping[str, Any]) -> str | None:
        """Return why `state` cannot be loaded, by who has saved it and by the shapes of its tensors; None: it can."""
        saved_by = {name: state.get(name) for name in self._place}
        if saved_by != self._place:
            wanted, given = ("rank {rank} of {num_ranks}".format(**each) for each in (self._place, saved_by))
            remedy = (
                ": without one, load the model before you attach it" if saved_by["num_ranks"] != num_ranks() else ""
            )
            return f"`state` must be what {wanted} has saved, got that of {given}{remedy}"
        expected, got = shapes_of(tensors_of(self._parts)), shapes_of(state["tensors"])
        if expected != got:
            return f"`state` must be of the same exchange, model and number of ranks: {expected}, got {got}"
        return None


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of `tensors` by name."""
    return {name: tuple(each.shape) for name, each in tensors.items()}
