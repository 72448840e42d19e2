"""Save a rank's part of a run that a framework trains: its memory, and its own parameters where ranks train apart.

A framework saves rank 0's model alone. So each rank keeps a file of its own next to that checkpoint.
"""

import io
import logging
from pickle import UnpicklingError  # of torch.load, which with `weights_only` runs no code
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trainers import filesystem
from trainers.methods.replica_config import ReplicaConfig
from trainers.methods.sync.shared.differing import INTEGERS
from trainers.own_loop.attach import Attached
from trainers.own_loop.handle import num_ranks, shapes_of
from trainers.spec.exchange import UpdateConfig
from wiretune.tuner import Tuner

log = logging.getLogger(__name__)


class RankState:
    """This rank's part of a `model` that `handle` trains, and `tuner` searches: saved and resumed."""

    def __init__(self, model: nn.Module, handle: Attached, tuner: Tuner | None = None) -> None:
        self.handle = handle
        self._model, self._tuner = model, tuner

    def saved(self) -> bytes:
        """Return this rank's part as the content of a file; collective."""
        fingerprint = self._fingerprint()
        own = {name: each.detach() for name, each in (self._own_tensors() | self.handle.own).items()}
        file = io.BytesIO()
        # of a search too, unless a callback of the user's saves within a probe
        searched = None if self._tuner is None or self._tuner.is_probing else self._tuner.state_dict()
        memory = {"handle": self.handle.state_dict()} if searched is None else {"tuner": searched}  # which has it, too
        torch.save({"fingerprint": fingerprint, "own": own} | memory, file)
        return file.getvalue()

    @torch.no_grad()
    def resume(self, place: str) -> None:
        """Restore what each rank has saved at its `place`, unless a rank's file does not fit; collective."""
        saved = _read(place)
        fingerprint = self._fingerprint()
        conflict = self._conflict(saved, fingerprint)
        fitting = torch.tensor([float(conflict is None)])
        self.handle.node_links.all_reduce_sum(fitting, {"control": fitting.nbytes})
        if saved is None or fitting < num_ranks():
            log.warning(
                "the exchange has lost its memory of the steps before: `%s` is left out: %s",
                place,
                conflict or "that of another rank does not fit, which its own warning explains",
            )
            return
        live = self._tensors()
        for name, tensor in saved["own"].items():
            live[name].copy_(tensor)
        searched = saved.get("tuner")
        if self._tuner is not None and searched is not None:
            self._tuner.load_state_dict(searched)
            return
        self.handle.load_state_dict(_memory_in(saved))
        if self._tuner is not None:
            log.warning("the search begins anew: `%s` was saved without one, or within a probe", place)

    def _conflict(self, saved: dict[str, Any] | None, fingerprint: Tensor) -> str | None:
        """Return why this rank cannot restore `saved`, next to weights with this `fingerprint`; None: it can."""
        if saved is None:
            return "the file must be there, and whole"
        if not torch.equal(saved["fingerprint"], fingerprint):
            return "it must have been saved beside the weights that are loaded"
        if conflict := self.handle.conflict(_memory_in(saved)):
            return conflict
        own, live = shapes_of(saved["own"]), shapes_of(self._tensors())
        if own.items() <= live.items() and own.keys() >= self._own_tensors().keys():
            return None
        return "its parameters and buffers must be those of the model"

    @torch.no_grad()
    def _fingerprint(self) -> Tensor:
        """Return a checksum for each of rank 0's trained parameters, to recognise its weights; collective."""
        trained = (each for each in self._model.parameters() if each.requires_grad)
        sums = torch.stack([each.view(INTEGERS[each.element_size()]).sum(dtype=torch.int64) for each in trained]).cpu()
        self.handle.settle()
        self.handle.node_links.tell(sums)
        return sums

    def _own_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that may differ between ranks: trained parameters and buffers; none where ranks agree.

        A frozen parameter that differs, such as an averaged teacher, is in `handle.own` while it is lent.
        """
        if not self.handle.config.parameters_may_differ:
            return {}
        frozen = {name for name, each in self._model.named_parameters() if not each.requires_grad}
        return {name: each for name, each in self._tensors().items() if name not in frozen}

    def _tensors(self) -> dict[str, Tensor]:
        return dict(self._model.named_parameters()) | dict(self._model.named_buffers())


class Words(NamedTuple):
    """The framework's names for a GradScaler and for clipping, and what to give instead."""

    scaler: str
    no_scaler: str
    clip: str
    no_clip: str


def check_loop(config: ReplicaConfig, *, words: Words, clips_at: float | None, has_scaler: bool) -> None:
    """Raise ValueError for what would part the ranks: clipping, or a GradScaler where each has its own gradients."""
    exchange = config.exchange
    if has_scaler and config.parameters_may_differ:
        raise ValueError(
            f"{words.scaler} must be off with `{config.differ_under}`: one rank alone would skip a step, and the "
            f"others wait for it; give {words.no_scaler}"
        )
    if clips_at and (exchange.drifts or isinstance(exchange, UpdateConfig)):
        raise ValueError(
            f"{words.clip} must be 0 with `{exchange.kind}`, which gradients must not be clipped with, got "
            f"{clips_at:g}: {words.no_clip}"
        )


def _memory_in(saved: dict[str, Any]) -> dict[str, Any]:
    """Return the handle's state in `saved`: a search has it in its own state."""
    memory: dict[str, Any] = saved["handle"] if "handle" in saved else saved["tuner"]["handle"]
    return memory


def _read(place: str) -> dict[str, Any] | None:
    """Return what is saved at `place`, or None if the file is missing, or cut because its process was killed."""
    try:
        return dict(torch.load(io.BytesIO(filesystem.read(place)), map_location="cpu", weights_only=True))
    except FileNotFoundError:
        return None
    except (OSError, EOFError, RuntimeError, ValueError, UnpicklingError) as error:
        log.warning("`%s` cannot be read: %s", place, error)
        return None
