"""The whole state of one rank: live tensors and scalars, copied into slots and back."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


class Stateful(Protocol):
    """Something with state: tensors, updated in place and never replaced, and JSON-compatible scalars."""

    def tensors(self) -> dict[str, Tensor]: ...
    def scalars(self) -> dict[str, Any]: ...
    def load_scalars(self, scalars: dict[str, Any]) -> None: ...


class Steps:
    """Counts the optimizer steps taken."""

    def __init__(self) -> None:
        self.taken = 0

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def scalars(self) -> dict[str, Any]:
        return {"taken": self.taken}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        self.taken = scalars["taken"]


class Tensors:
    """Live tensors without scalars: a model's parameters, or its buffers."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = {name: tensor.detach() for name, tensor in tensors.items()}

    def tensors(self) -> dict[str, Tensor]:
        return self._tensors

    def scalars(self) -> dict[str, Any]:
        return {}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        return


class RandomState:
    """A rank's own state of torch's global generators, in force inside `scope` only."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._device = device
        self._states = {"cpu": torch.Generator().manual_seed(seed).get_state()}
        if device.type == "cuda":
            self._states["cuda"] = torch.Generator(device).manual_seed(seed).get_state()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Draw from this state, and put the process's own back afterwards."""
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.random.set_rng_state(self._states["cpu"])
            if devices:
                torch.cuda.set_rng_state(self._states["cuda"], self._device)
            yield
            self._states["cpu"].copy_(torch.random.get_rng_state())
            if devices:
                self._states["cuda"].copy_(torch.cuda.get_rng_state(self._device))

    def tensors(self) -> dict[str, Tensor]:
        return self._states

    def scalars(self) -> dict[str, Any]:
        return {}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        return


@dataclass
class _Slot:
    tensors: list[Tensor]
    scalars: dict[str, Any]


class State:
    """State by part: `shared` parts are equal on all ranks, `own` ones are this rank's."""

    def __init__(self, *, shared: Mapping[str, Stateful], own: Mapping[str, Stateful]) -> None:
        self.shared, self.own = dict(shared), dict(own)
        self._parts = self.shared | self.own
        self._slots: dict[str, _Slot] = {}

    def snapshot(self, slot: str) -> None:
        """Copy the state into `slot`; its memory is allocated once, at the first use of the name."""
        live = list(tensors_of(self._parts).values())
        if slot not in self._slots:
            self._slots[slot] = _Slot([torch.empty_like(tensor) for tensor in live], {})
        with torch.no_grad():
            torch._foreach_copy_(self._slots[slot].tensors, live)
        self._slots[slot].scalars = scalars_of(self._parts)

    def restore(self, slot: str) -> None:
        """Copy `slot` back into the live state; the slot stays as it is. KeyError: nothing was put there."""
        saved = self._slots[slot]
        # Never an optimizer's load_state_dict: it would make the slot's tensors the live ones.
        with torch.no_grad():
            torch._foreach_copy_(list(tensors_of(self._parts).values()), saved.tensors)
        load_scalars(self._parts, saved.scalars)

    def copy_from(self, other: "State") -> None:
        """Take over the live state of `other`, which has the same parts; this one's slots stay as they are."""
        other.snapshot("")
        self._slots[""] = other._slots.pop("")
        self.restore("")
        del self._slots[""]


def tensors_of(parts: Mapping[str, Stateful]) -> dict[str, Tensor]:
    """Return the live tensors of all parts, named `part.name`."""
    return {f"{part}.{name}": tensor for part, state in parts.items() for name, tensor in state.tensors().items()}


def scalars_of(parts: Mapping[str, Stateful]) -> dict[str, Any]:
    """Return the scalars of each part, by its name."""
    return {part: state.scalars() for part, state in parts.items()}


def load_scalars(parts: Mapping[str, Stateful], scalars: Mapping[str, Any]) -> None:
    """Give each part its scalars back."""
    for part, state in parts.items():
        state.load_scalars(scalars[part])
