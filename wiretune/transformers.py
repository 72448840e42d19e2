"""Attach to a Trainer of Hugging Face transformers, which the extra `recipes` installs."""

from functools import partial
from typing import Any

from transformers import Trainer, TrainerCallback, TrainingArguments

from trainers.own_loop.attach import attach, refuse_ranges
from trainers.spec.exchange import UpdateConfig
from trainers.spec.replica import ReplicaConfig


class AttachCallback(TrainerCallback):  # type: ignore[misc]
    """Attaches when training begins: only then does `trainer` have its model in DistributedDataParallel.

    `trainer.add_callback(AttachCallback(trainer, exchange={"kind": "topk", "density": 0.01}))`; the keywords are those
    of `attach`, whose handle is `handle` from then on. Most kinds want `ddp_find_unused_parameters=False` in the
    TrainingArguments, where transformers' own default is True. A further `train()` of the same model by the same
    optimizer goes on with that handle. `train()` raises ValueError for an exchange with which a loop must not clip
    gradients, unless `max_grad_norm` is 0: by default the Trainer clips.
    """

    def __init__(self, trainer: Trainer, **how: Any) -> None:
        self._trainer, self._how = trainer, how
        self._attached: tuple[Any, ...] = ()

    def on_train_begin(self, args: TrainingArguments, *_: Any, **__: Any) -> None:
        found = self._trainer.model_wrapped, self._trainer.optimizer
        if found != self._attached:
            check = partial(_check, max_grad_norm=args.max_grad_norm)
            self.handle, self._attached = attach(*found, check_ranges=check, **self._how), found


def _check(config: ReplicaConfig, *, max_grad_norm: float | None) -> None:
    """Raise ValueError for a range, and for clipping where it would scale a direction, or each rank by itself."""
    refuse_ranges(config)
    exchange = config.exchange
    if max_grad_norm and (exchange.drifts or isinstance(exchange, UpdateConfig)):
        raise ValueError(
            f"`max_grad_norm` must be 0 with `{exchange.kind}`, which gradients must not be clipped with, got "
            f"{max_grad_norm:g}: give it to the TrainingArguments, whose default is 1"
        )
