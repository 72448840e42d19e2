"""What the handles of a user's own loop have in common: a state that each rank saves and loads."""

from collections.abc import Mapping
from typing import Any

import torch

from trainers.snapshot import Stateful, load_scalars, scalars_of, tensors_of


class Handle:
    """The state of one model's exchange, of named parts. It is this rank's own: each rank saves and loads its."""

    def __init__(self, parts: Mapping[str, Stateful]) -> None:
        self._parts = parts

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's memories and what goes with them: tensors, and JSON-compatible scalars."""
        tensors = {name: tensor.clone() for name, tensor in tensors_of(self._parts).items()}
        return {"tensors": tensors, "scalars": scalars_of(self._parts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to `state`, which this rank of as many ranks has saved; raises ValueError if it is not like that."""
        live, saved = tensors_of(self._parts), state["tensors"]
        expected, got = ({name: tuple(each.shape) for name, each in tensors.items()} for tensors in (live, saved))
        if expected != got:
            raise ValueError(f"`state` must be of the same exchange, model and number of ranks: {expected}, got {got}")
        torch._foreach_copy_(list(live.values()), [saved[name] for name in live])
        load_scalars(self._parts, state["scalars"])
