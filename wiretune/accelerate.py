"""Save and load with Hugging Face Accelerate, which the extra `recipes` installs."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import nn

from trainers import filesystem
from trainers.own_loop.attach import Attached
from trainers.own_loop.handle import rank
from wiretune.rank_state import RankState


class Checkpointed(Protocol):
    """An `accelerate.Accelerator`, by what is used of it."""

    def register_save_state_pre_hook(self, hook: Callable[..., None]) -> Any: ...
    def register_load_state_pre_hook(self, hook: Callable[..., None]) -> Any: ...
    def register_for_checkpointing(self, *objects: Any) -> None: ...


def checkpointing(accelerator: Checkpointed, model: nn.Module, handle: Attached) -> None:
    """Have `accelerator.save_state` save each rank's memory too, and `accelerator.load_state` load it.

    Call it once, after `attach`, which got `model` and returned `handle`. Each rank has its file in the checkpoint's
    folder, as `wiretune-0.pt`. Where ranks train apart it also has the rank's own parameters and buffers, and
    Accelerate saves their mean. A rank's file that does not fit the weights beside it is left alone, with a warning.
    """
    part = _Part(RankState(model, handle))
    accelerator.register_save_state_pre_hook(part.save)
    accelerator.register_load_state_pre_hook(part.note)
    accelerator.register_for_checkpointing(part)


class _Part:
    """One object more to Accelerate, which saves and loads it last, on all ranks."""

    def __init__(self, ranks: RankState) -> None:
        self._ranks, self._handle = ranks, ranks.handle
        self._place, self._lends = "", False

    def save(self, models: Sequence[nn.Module], weights: Sequence[Any], folder: str) -> None:
        self._take_back()  # what a save that failed has left: `lend` is collective
        self._lends = not self._handle.own
        self._handle.lend()  # in place: `weights` are the model's own tensors
        try:
            filesystem.write(f"{folder}/wiretune-{rank()}.pt", self._ranks.saved())
        except BaseException:
            self._take_back()
            raise

    def state_dict(self) -> dict[str, Any]:
        self._take_back()
        return {}

    def _take_back(self) -> None:
        if self._lends:
            self._handle.take_back()
            self._lends = False

    def note(self, models: Sequence[nn.Module], folder: str) -> None:
        self._take_back()
        self._place = f"{folder}/wiretune-{rank()}.pt"

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._ranks.resume(self._place)
