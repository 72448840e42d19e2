"""Attach to a Trainer of Hugging Face transformers, which the extra `recipes` installs."""

import logging
from functools import partial
from pathlib import Path
from pickle import UnpicklingError  # of torch.load, which with `weights_only` runs no code
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments

from trainers.own_loop.attach import attach
from trainers.own_loop.attachable import refuse_ranges
from trainers.own_loop.handle import num_ranks, rank, shapes_of
from trainers.spec.exchange import UpdateConfig
from trainers.spec.replica import ReplicaConfig

log = logging.getLogger(__name__)
#: Integers of as many bytes as an entry of a parameter: their sum is exact, on any device.
INTEGERS = {2: torch.int16, 4: torch.int32}


class AttachCallback(TrainerCallback):  # type: ignore[misc]
    """Attaches when training begins: only then does `trainer` have its model in DistributedDataParallel.

    `trainer.add_callback(AttachCallback(trainer, exchange={"kind": "topk", "density": 0.01}))`; the keywords are those
    of `attach`, whose handle is `handle` from then on. Most kinds want `ddp_find_unused_parameters=False` in the
    TrainingArguments, where transformers' own default is True. A further `train()` of the same model by the same
    optimizer goes on with that handle. `train()` raises ValueError for an exchange with which a loop must not clip
    gradients, unless `max_grad_norm` is 0: by default the Trainer clips.

    Each rank saves its memory into the Trainer's checkpoints, and a run that resumes from one in its `output_dir` takes
    it back. Where ranks train apart that is with the parameters and buffers of each, as the Trainer saves those of rank
    0 alone. What was saved beside other weights, or by another exchange or sync, is left where it is.
    """

    def __init__(self, trainer: Trainer, **how: Any) -> None:
        self._trainer, self._how = trainer, how
        self._attached: tuple[Any, ...] = ()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        found = self._trainer.model_wrapped, self._trainer.optimizer
        if found != self._attached:
            check = partial(_check, max_grad_norm=args.max_grad_norm)
            self.handle, self._attached = attach(*found, check_ranges=check, **self._how), found
        if state.global_step:
            self._resume(_place(args, state))

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        if args.save_only_model:
            return
        saved = {"methods": _methods(self.handle.config), "fingerprint": self._fingerprint()}
        place = _place(args, state)
        if place.parent.is_dir():  # a search over runs has its checkpoints elsewhere
            own = {name: each.detach() for name, each in self._own_tensors().items()}
            torch.save(saved | {"handle": self.handle.state_dict(), "own": own}, place)

    @torch.no_grad()
    def _resume(self, place: Path) -> None:
        """Go on with what each rank has saved at its `place`, unless that of one of them does not fit; collective."""
        saved = _read(place)
        fingerprint = self._fingerprint()
        fitting = torch.tensor([float(saved is not None and self._fits(saved, fingerprint))])
        self.handle.node_links.all_reduce_sum(fitting, {"control": fitting.nbytes})
        if saved is None or fitting < num_ranks():
            log.warning(
                "the exchange has lost its memory of the steps before: `%s` must be whole on each of %d ranks, saved "
                "by as many, beside the weights that the Trainer has loaded, and by the same exchange and sync",
                place,
                num_ranks(),
            )
            return
        self.handle.load_state_dict(saved["handle"])
        for name, tensor in self._own_tensors().items():
            tensor.copy_(saved["own"][name])

    def _fits(self, saved: dict[str, Any], fingerprint: Tensor) -> bool:
        """Return whether a rank with this model goes on with what is `saved`, beside weights of this `fingerprint`."""
        return (
            _go_together(saved.get("methods"), _methods(self.handle.config))
            and torch.equal(saved["fingerprint"], fingerprint)
            and shapes_of(saved["own"]) == shapes_of(self._own_tensors())
            and self.handle.conflict(saved["handle"]) is None
        )

    @torch.no_grad()
    def _fingerprint(self) -> Tensor:
        """Return a sum for each of rank 0's trained parameters, which tell its weights from others; collective."""
        trained = (each for each in self._trainer.model_wrapped.parameters() if each.requires_grad)
        sums = torch.stack([each.view(INTEGERS[each.element_size()]).sum(dtype=torch.int64) for each in trained]).cpu()
        self.handle.settle()
        self.handle.node_links.tell(sums)
        return sums

    def _own_tensors(self) -> dict[str, Tensor]:
        """Return the trained parameters and the buffers of this rank, if others may have different ones."""
        config = self.handle.config
        if config.sync.payload != "parameters" and not config.exchange.drifts:
            return {}
        model = self._trainer.model_wrapped
        trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
        return trained | dict(model.named_buffers())


def _place(args: TrainingArguments, state: TrainerState) -> Path:
    """Return where this rank's part of the Trainer's checkpoint of this step is."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}" / f"wiretune-{rank()}.pt"


def _read(place: Path) -> dict[str, Any] | None:
    """Return what is saved at `place`; None: nothing, or a part, since the process was killed while it wrote."""
    try:
        return dict(torch.load(place, map_location="cpu", weights_only=True))
    except FileNotFoundError:
        return None
    except (OSError, EOFError, RuntimeError, ValueError, UnpicklingError) as error:
        log.warning("`%s` cannot be read: %s", place, error)
        return None


def _methods(config: ReplicaConfig) -> dict[str, Any]:
    """Return the exchange and the sync of `config` as plain fields."""
    return config.model_dump(mode="json", include={"exchange", "sync"})


def _go_together(saved: Any, now: Any) -> bool:
    """Return whether two configurations are the same but for their numbers, and for fields that only one has.

    A memory goes on with another density, and a release may add a field.
    """
    if isinstance(saved, dict) and isinstance(now, dict):
        return all(_go_together(saved[name], now[name]) for name in saved.keys() & now.keys())
    are_numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (saved, now))
    return are_numbers or bool(saved == now)


def _check(config: ReplicaConfig, *, max_grad_norm: float | None) -> None:
    """Raise ValueError for a range, and for clipping where it would scale a direction, or each rank by itself."""
    refuse_ranges(config)
    exchange = config.exchange
    if max_grad_norm and (exchange.drifts or isinstance(exchange, UpdateConfig)):
        raise ValueError(
            f"`max_grad_norm` must be 0 with `{exchange.kind}`, which gradients must not be clipped with, got "
            f"{max_grad_norm:g}: give it to the TrainingArguments, whose default is 1"
        )
