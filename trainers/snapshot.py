"""The whole state of one rank: live tensors and scalars, copied into slots and back."""

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from trainers import random_state

log = logging.getLogger("wiretune.snapshot")


class Stateful(Protocol):
    """An object with state: tensors, which are updated in place and never replaced, and JSON-compatible scalars.

    If the set of tensors can change, as when an optimizer makes its state at its first step, the object also has
    `fit(tensors)`. It takes on the names and shapes of `tensors`; the caller copies the values afterwards.
    """

    def tensors(self) -> dict[str, Tensor]: ...
    def scalars(self) -> dict[str, Any]: ...
    def load_scalars(self, scalars: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Kept:
    """One part's own state of rank `index`, of `of` ranks, as a checkpoint holds it."""

    tensors: Mapping[str, Tensor]
    scalars: Mapping[str, Any]
    index: int
    of: int


class Inheriting(Stateful, Protocol):
    """A part that belongs to one rank and can resume with another number of ranks."""

    def inherit(self, kept: Kept) -> None:
        """Take over this rank's share of `kept`. Called for every old rank in order, before the first step."""


class WithoutScalars:
    """Base of parts whose state is all in tensors."""

    def scalars(self) -> dict[str, Any]:
        return {}

    def load_scalars(self, scalars: dict[str, Any]) -> None:
        return


class Stateless(WithoutScalars):
    """A part that keeps nothing between steps."""

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def inherit(self, kept: Kept) -> None:
        return


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

    def inherit(self, kept: Kept) -> None:
        self.taken = kept.scalars["taken"]  # by all ranks together


class Tensors(WithoutScalars):
    """Live tensors: a model's parameters, or its buffers."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = {name: tensor.detach() for name, tensor in tensors.items()}

    def tensors(self) -> dict[str, Tensor]:
        return self._tensors


class Buffers(Tensors):
    """A model's buffers: each rank's own statistics, and counts."""

    def inherit(self, kept: Kept) -> None:
        """Take the mean over the old ranks, as evaluation does. Integers come from the first rank."""
        for name, live in self.tensors().items():
            theirs = kept.tensors[name].to(live.device)
            if kept.index == 0:
                live.copy_(theirs)
            elif live.is_floating_point():
                mean = live + (theirs - live) / (kept.index + 1)
                live.copy_(torch.where(live == theirs, live, mean))  # constants keep their bits, infinities too


class RandomState(WithoutScalars):
    """A rank's own state of torch's global generators. It is in force only inside `scope`."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._device = device
        self._states = {"cpu": torch.Generator().manual_seed(seed).get_state()}
        if device.type == "cuda":
            self._states["cuda"] = torch.Generator(device).manual_seed(seed).get_state()

    def begin(self, seed: int) -> None:
        """Start again from `seed`, whatever was drawn before."""
        for name, state in RandomState(seed, self._device).tensors().items():
            self._states[name].copy_(state)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Draw from this state, and restore the process's own state afterwards."""
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            random_state.enforce(self._states, self._device)
            yield
            for name, state in random_state.present(self._device).items():
                self._states[name].copy_(state)

    def tensors(self) -> dict[str, Tensor]:
        return self._states


@dataclass
class Image:
    """A copy of a state: its tensors, named `part.name`, and the scalars of each part."""

    tensors: dict[str, Tensor]
    scalars: dict[str, Any]


#: The name of the live state among the images of a `State`. No slot has this name.
LIVE = ""


class State:
    """A rank's state by part: `shared` parts are equal on all ranks, `own` parts belong to this rank.

    `on_host` names parts, or tensors as `part.name`, whose copies in slots are kept in host memory, since the device
    may have none to spare. If it has no room for a slot, all of that slot is.
    """

    def __init__(
        self, *, shared: Mapping[str, Stateful], own: Mapping[str, Stateful], on_host: Collection[str] = ()
    ) -> None:
        self.shared, self.own = dict(shared), dict(own)
        self._parts = self.shared | self.own
        self._on_host = frozenset(on_host)
        self._slots: dict[str, Image] = {}

    def snapshot(self, slot: str) -> None:
        """Copy the live state into `slot`. Its memory is allocated at first use and held until `forget`."""
        live = tensors_of(self._parts)
        if slot not in self._slots or self._slots[slot].tensors.keys() != live.keys():
            self.forget(slot)  # before there is another one: both may have no room
            self._slots[slot] = Image(self._room(live), {})
        saved = self._slots[slot].tensors
        with torch.no_grad():
            torch._foreach_copy_([saved[name] for name in live], list(live.values()))
        self._slots[slot].scalars = scalars_of(self._parts)

    def _room(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return new tensors like these: on the same device if it has room for them, else in host memory."""
        with suppress(torch.OutOfMemoryError):
            return {
                name: torch.empty_like(each, device="cpu" if self._is_on_host(name) else None)
                for name, each in tensors.items()
            }
        log.warning(
            "the GPU has no room for a copy of the state, which is kept in host memory: going back takes longer"
        )
        return {name: torch.empty_like(each, device="cpu") for name, each in tensors.items()}

    def _is_on_host(self, name: str) -> bool:
        return not self._on_host.isdisjoint((name, name.partition(".")[0]))

    def restore(self, slot: str) -> None:
        """Copy `slot` back into the live state; the slot stays as it is. Raises KeyError if there is no such slot."""
        self._take(self._slots[slot].tensors, self._slots[slot].scalars)

    def forget(self, slot: str) -> None:
        """Free the memory of `slot`, if it exists."""
        self._slots.pop(slot, None)

    def image(self, slot: str) -> Image:
        """Return a copy of `slot`, without what is on the host and equal to the live state: a frozen base is large."""
        live, kept = tensors_of(self._parts), self._slots[slot]
        changed = {
            name: tensor.clone()
            for name, tensor in kept.tensors.items()
            if not (self._is_on_host(name) and torch.equal(tensor, live[name].to(tensor.device)))
        }
        return Image(changed, kept.scalars)

    def put(self, slot: str, image: Image) -> None:
        """Fill `slot` with what `image` returned of a state like this one. What that left out is the live state's."""
        live = tensors_of(self._parts)
        absent = {name: tensor for name, tensor in live.items() if self._is_on_host(name)}
        given = absent | image.tensors
        self.forget(slot)
        kept = self._room({name: live.get(name, tensor) for name, tensor in given.items()})
        self._slots[slot] = Image({name: kept[name].copy_(tensor) for name, tensor in given.items()}, image.scalars)

    def images(self) -> dict[str, Image]:
        """Return the live state, under the name `LIVE`, and every slot by its name."""
        return {LIVE: Image(tensors_of(self._parts), scalars_of(self._parts)), **self._slots}

    def adopt(self, images: Mapping[str, Image]) -> None:
        """Take over another rank's `images`, tensors included, and forget slots that it does not have.

        State that the images leave out stays as it is.
        """
        mine = self.images()
        self._slots = {}
        for slot, image in images.items():
            kept = mine.get(slot, mine[LIVE])
            missing = {name: tensor.clone() for name, tensor in kept.tensors.items() if name not in image.tensors}
            self._slots[slot] = Image(image.tensors | missing, kept.scalars | image.scalars)
        live = self._slots.pop(LIVE)
        self._take(live.tensors, live.scalars)

    def copy_from(self, other: "State") -> None:
        """Take over the live state of `other`, which has the same parts; the slots stay as they are."""
        self._take(tensors_of(other._parts), scalars_of(other._parts))

    def _take(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> None:
        fit(self._parts, tensors)
        # Never an optimizer's load_state_dict: it would make these tensors the live ones.
        live = tensors_of(self._parts)
        with torch.no_grad():
            torch._foreach_copy_(list(live.values()), [tensors[name] for name in live])
        load_scalars(self._parts, scalars)


def tensors_of(parts: Mapping[str, Stateful]) -> dict[str, Tensor]:
    """Return the live tensors of all parts, named `part.name`."""
    return {f"{part}.{name}": tensor for part, state in parts.items() for name, tensor in state.tensors().items()}


def part_of(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    """Return one part's tensors from `tensors`, which are named `part.name`; the result has the bare names."""
    prefix = f"{part}."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def fit(parts: Mapping[str, Stateful], tensors: Mapping[str, Tensor]) -> None:
    """Give parts whose set of tensors can change the set in `tensors`, which are named `part.name`."""
    for part, state in parts.items():
        if hasattr(state, "fit"):
            state.fit(part_of(tensors, part))


def scalars_of(parts: Mapping[str, Stateful]) -> dict[str, Any]:
    """Return the scalars of each part, by its name."""
    return {part: state.scalars() for part, state in parts.items()}


def load_scalars(parts: Mapping[str, Stateful], scalars: Mapping[str, Any]) -> None:
    """Load into each part its scalars. A part that an earlier release did not have gets none."""
    for part, state in parts.items():
        state.load_scalars(scalars.get(part, {}))
