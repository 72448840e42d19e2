"""Attach to a Trainer of Hugging Face transformers, which the extra `recipes` installs."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments

from trainers.own_loop.attach import attach
from trainers.own_loop.attachable import refuse_ranges
from trainers.own_loop.handle import num_ranks, rank
from trainers.spec.exchange import UpdateConfig
from trainers.spec.replica import ReplicaConfig

log = logging.getLogger(__name__)


class AttachCallback(TrainerCallback):  # type: ignore[misc]
    """Attaches when training begins: only then does `trainer` have its model in DistributedDataParallel.

    `trainer.add_callback(AttachCallback(trainer, exchange={"kind": "topk", "density": 0.01}))`; the keywords are those
    of `attach`, whose handle is `handle` from then on. Most kinds want `ddp_find_unused_parameters=False` in the
    TrainingArguments, where transformers' own default is True. A further `train()` of the same model by the same
    optimizer goes on with that handle. `train()` raises ValueError for an exchange with which a loop must not clip
    gradients, unless `max_grad_norm` is 0: by default the Trainer clips.

    Each rank saves its memory into the Trainer's checkpoints, and a run that resumes from one in its `output_dir` takes
    it back. Where ranks train apart that is with the parameters of each, as the Trainer saves those of rank 0 alone.
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
        place = _place(args, state)
        if place.parent.is_dir() and not args.save_only_model:  # a search over runs has its checkpoints elsewhere
            own = {name: each.detach() for name, each in self._own_parameters().items()}
            torch.save({"handle": self.handle.state_dict(), "parameters": own}, place)

    @torch.no_grad()
    def _resume(self, place: Path) -> None:
        """Go on with what each rank has saved at its `place`, unless one of them has nothing there; collective."""
        saved = torch.load(place, map_location="cpu", weights_only=True) if place.is_file() else None
        fits = saved is not None and saved["handle"]["num_ranks"] == num_ranks()
        fitting = torch.tensor([float(fits)])
        self.handle.settle()
        self.handle.node_links.all_reduce_sum(fitting, {"control": fitting.nbytes})
        if saved is None or fitting < num_ranks():
            log.warning(
                "the exchange has lost its memory of the steps before: `%s` must be there on each of %d ranks, saved "
                "by as many",
                place,
                num_ranks(),
            )
            return
        self.handle.load_state_dict(saved["handle"])
        for name, parameter in self._own_parameters().items():
            parameter.copy_(saved["parameters"][name])

    def _own_parameters(self) -> dict[str, Tensor]:
        """Return the trained parameters of this rank, if others may have different ones."""
        config = self.handle.config
        if config.sync.payload != "parameters" and not config.exchange.drifts:
            return {}
        model = self._trainer.model_wrapped
        return {name: each for name, each in model.named_parameters() if each.requires_grad}


def _place(args: TrainingArguments, state: TrainerState) -> Path:
    """Return where this rank's part of the Trainer's checkpoint of this step is."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}" / f"wiretune-{rank()}.pt"


def _check(config: ReplicaConfig, *, max_grad_norm: float | None) -> None:
    """Raise ValueError for a range, and for clipping where it would scale a direction, or each rank by itself."""
    refuse_ranges(config)
    exchange = config.exchange
    if max_grad_norm and (exchange.drifts or isinstance(exchange, UpdateConfig)):
        raise ValueError(
            f"`max_grad_norm` must be 0 with `{exchange.kind}`, which gradients must not be clipped with, got "
            f"{max_grad_norm:g}: give it to the TrainingArguments, whose default is 1"
        )
