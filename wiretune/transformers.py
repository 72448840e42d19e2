"""Attach to a Trainer of Hugging Face transformers, which the extra `recipes` installs."""

from typing import Any

from transformers import Trainer, TrainerCallback

from trainers.own_loop.attach import attach


class AttachCallback(TrainerCallback):  # type: ignore[misc]
    """Attaches when training begins: only then does `trainer` have its model in DistributedDataParallel.

    `trainer.add_callback(AttachCallback(trainer, exchange={"kind": "topk", "density": 0.01}))`; the keywords are those
    of `attach`, whose handle is `handle` from then on. Most kinds want `ddp_find_unused_parameters=False` in the
    TrainingArguments, where transformers' own default is True. A further `train()` of the same model by the same
    optimizer goes on with that handle.
    """

    def __init__(self, trainer: Trainer, **how: Any) -> None:
        self._trainer, self._how = trainer, how
        self._attached: tuple[Any, ...] = ()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        found = self._trainer.model_wrapped, self._trainer.optimizer
        if found != self._attached:
            self.handle, self._attached = attach(*found, **self._how), found
