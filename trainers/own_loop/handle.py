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
    """The state of one model's exchange, of named parts. It is this rank's own: each rank saves and loads its.

    `methods` are the plain fields of what the state is a memory of.
    """

    def __init__(self, parts: Mapping[str, Stateful], methods: Mapping[str, Any]) -> None:
        self._parts, self._methods = parts, methods
        self._place = {"rank": rank(), "num_ranks": num_ranks()}

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's memories: tensors and JSON-compatible scalars, of which methods, and whose they are."""
        tensors = {name: tensor.clone() for name, tensor in tensors_of(self._parts).items()}
        return {"tensors": tensors, "scalars": scalars_of(self._parts), "methods": self._methods, **self._place}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to `state`, which this rank of as many ranks has saved.

        Raises ValueError if it is not like that, and changes nothing then.
        """
        if conflict := self.conflict(state):
            raise ValueError(conflict)
        tensors, before = tensors_of(self._parts), scalars_of(self._parts)
        try:
            load_scalars(self._parts, state["scalars"])
        except (KeyError, TypeError, ValueError) as error:
            load_scalars(self._parts, before)
            raise ValueError(
                f"`state` must be of the same exchange and model: its scalars do not fit, {error}"
            ) from None
        for name, tensor in tensors.items():  # of a dense exchange there are none
            tensor.copy_(state["tensors"][name])

    def conflict(self, state: Mapping[str, Any]) -> str | None:
        """Return why `state` cannot be loaded, by who has saved it, of which methods and shapes; None: it can."""
        saved_by = {name: state.get(name) for name in self._place}
        if saved_by != self._place:
            wanted, given = ("rank {rank} of {num_ranks}".format(**each) for each in (self._place, saved_by))
            remedy = (
                ": without one, load the model before you attach it" if saved_by["num_ranks"] != num_ranks() else ""
            )
            return f"`state` must be what {wanted} has saved, got that of {given}{remedy}"
        if field := _differing_field(state.get("methods", {}), self._methods):  # 0.1.0 saved none
            return f"`state` must be of the same methods, but for their numbers: {field}"
        expected, got = shapes_of(tensors_of(self._parts)), shapes_of(state["tensors"])
        if expected != got:
            return f"`state` must be of the same exchange, model and number of ranks: {expected}, got {got}"
        return None


def _differing_field(saved: Any, now: Any, *, name: str = "") -> str | None:
    """Return in which field two configurations differ, and how. None: in numbers alone, or in what only one has.

    A memory goes on with another density, or with one where a range was searched, and a release may add a field.
    """
    if isinstance(saved, Mapping) and isinstance(now, Mapping):
        common = sorted(saved.keys() & now.keys(), key=lambda field: (field != "kind", field))
        fields = (_differing_field(saved[each], now[each], name=f"{name}.{each}".lstrip(".")) for each in common)
        return next((field for field in fields if field), None)
    if saved == now or (_is_amount(saved) and _is_amount(now)):
        return None
    return f"`{name}` is {now!r} here, got {saved!r}"


def _is_amount(value: Any) -> bool:
    """Return whether `value` is a number, or a range, which is a pair of them."""
    pair = value if isinstance(value, list) and len(value) == 2 else [value]
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in pair)


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of `tensors` by name."""
    return {name: tuple(each.shape) for name, each in tensors.items()}
