"""Attach to a Trainer of Hugging Face transformers, which the extra `recipes` installs."""

from typing import Any

from transformers import Trainer, TrainerCallback

from trainers.own_loop.attach import attach


class AttachCallback(TrainerCallback):  # type: ignore[misc]
    """Attaches when training begins: only then does `trainer` have its model in DistributedDataParallel.

    `trainer.add_callback(AttachCallback(trainer, exchange={"kind": "topk", "density": 0.01}))`; the keywords are those
    of `attach`, whose handle is `handle` from then on. Most kinds want `ddp_find_unused_parameters=False` in the
    TrainingArguments, where transformers' own default is True.
    """

    def __init__(self, trainer: Trainer, **how: Any) -> None:
        self._trainer, self._how = trainer, how

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.handle = attach(self._trainer.model_wrapped, self._trainer.optimizer, **self._how)
