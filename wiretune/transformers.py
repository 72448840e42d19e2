"""Attach to a Trainer of Hugging Face transformers, which the extra `recipes` installs."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from search.config import Budget
from trainers import filesystem
from trainers.own_loop.attach import Attached
from trainers.own_loop.handle import rank
from wiretune.loop import attach
from wiretune.rank_state import RankState, Words, check_loop
from wiretune.tuner import Tuner

#: What a Trainer does after a step if its control says so. During a probe it is put off.
EVENTS = ("should_evaluate", "should_save")
#: The slot of the state that a search ended with.
END = "end"
_WORDS = Words(
    scaler="`fp16`",
    no_scaler="`bf16=True` to the TrainingArguments",
    clip="`max_grad_norm`",
    no_clip="give it to the TrainingArguments, whose default is 1",
)


class AttachCallback(TrainerCallback):  # type: ignore[misc]
    """Attach when training begins: only then does `trainer` have its model in DistributedDataParallel.

    `trainer.add_callback(AttachCallback(trainer, exchange={"kind": "topk", "density": 0.01}))`. The keywords are those
    of `attach`, and `handle` is the handle that it returned. Most kinds want `ddp_find_unused_parameters=False` in the
    TrainingArguments, where transformers' own default is True. A further `train()` of the same model by the same
    optimizer goes on with that handle.

    `train()` raises ValueError for an exchange that forbids clipping unless `max_grad_norm` is 0: by default the
    Trainer clips. It also does for `fp16` where ranks train apart: one rank alone would skip a step.

    With `controller`, `tuner` runs the search. It gets the sum of the losses of a step's micro-batches, and sets the
    rates in place of the Trainer's scheduler. If no budget is given, `steps` are the Trainer's. The run ends with the
    budget. The Trainer puts off evaluating and saving during a probe. A run that resumes goes on with its search. If
    that was over, the run ends as it was saved: the Trainer takes one step, and it is taken back.

    Where ranks train apart, the Trainer evaluates and saves the mean of their parameters and buffers, and ends with it.

    Each rank saves its memory into the Trainer's checkpoints. Where ranks train apart, it also saves its own parameters
    and buffers, as the Trainer saves those of rank 0 alone. A run that resumes from a checkpoint in its `output_dir`
    restores them, but not what was saved beside other weights, or by another exchange or sync.
    """

    def __init__(self, trainer: Trainer, **how: Any) -> None:
        self._trainer, self._how = trainer, how
        self._attached: tuple[Any, ...] = ()
        self.tuner: Tuner | None = None
        self._train: Callable[..., Tensor] | None = None  # the Trainer's own `training_step`, while ours replaces it
        self._losses: list[Tensor] = []  # of a step's micro-batches so far
        self._due: set[str] = set()  # events that are put off until no probe is running
        self._has_ended = False  # whether the search was over when the run that resumes was saved

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        found = self._trainer.model_wrapped, self._trainer.optimizer
        if self._attached:
            if found != self._attached or state.global_step:
                self.handle.keep()  # the Trainer has made or loaded other weights
            self.handle.take_back()
        if found != self._attached:
            if self._attached:
                self.handle.detach()
            self._attach(args, state)
            self._attached = found
        searched = self._searches
        if state.global_step:
            self._ranks.resume(str(_place(args, state)))
        self._has_ended = searched and not self._searches
        if self.tuner is not None and self._searches:
            self.tuner.set_again()  # a Trainer makes a new scheduler for each training, which sets its own rates
            self._listen()

    @property
    def _searches(self) -> bool:
        """True while a controller sets the rates."""
        return self.tuner is not None and not self.tuner.is_over

    def _attach(self, args: TrainingArguments, state: TrainerState) -> None:
        trainer, how = self._trainer, dict(self._how)
        if (scaler := trainer.accelerator.scaler) is not None:
            how.setdefault("scale", scaler.get_scale)
        if how.get("controller") is not None:
            if how.keys().isdisjoint(Budget.model_fields):
                how["steps"] = state.max_steps
            for group in trainer.optimizer.param_groups:  # a scheduler that warms up has set the rate to 0
                group["lr"] = group.get("initial_lr", group["lr"])
        how["check_loop"] = partial(
            check_loop, words=_WORDS, clips_at=args.max_grad_norm, has_scaler=scaler is not None
        )
        attached: Attached | Tuner = attach(trainer.model_wrapped, trainer.optimizer, **how)
        self.tuner = attached if isinstance(attached, Tuner) else None
        self.handle = attached.handle if isinstance(attached, Tuner) else attached
        self._ranks = RankState(trainer.model_wrapped, self.handle, self.tuner)

    def _listen(self) -> None:
        """Keep the losses of micro-batches until the training ends. No hook of a Trainer gets them."""
        train = self._train or self._trainer.training_step
        self._losses.clear()

        def training_step(*args: Any, **kwargs: Any) -> Tensor:
            loss: Tensor = train(*args, **kwargs)
            self._losses.append(loss.detach())
            return loss

        self._train, self._trainer.training_step = train, training_step

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.handle.take_back()
        if self._has_ended:  # a Trainer that resumes takes a step before it asks whether to stop
            self.handle.settle()
            self.handle.snapshot(END)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *_: Any, **__: Any
    ) -> None:
        if self.tuner is not None and not self.tuner.is_over:
            self.tuner.report(torch.stack(self._losses).sum())  # the Trainer has divided each by their number
            self._losses.clear()
            control.should_training_stop = control.should_training_stop or self.tuner.is_over
        if self._has_ended:
            self.handle.settle()
            self.handle.restore(END)
            self.handle.forget(END)
            self._has_ended, control.should_training_stop = False, True
        self.on_epoch_end(args, state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *_: Any, **__: Any
    ) -> None:
        if self.tuner is not None:
            if control.should_training_stop and not self.tuner.is_over:
                self.handle.take_back()
                self.tuner.stop()
            self._due.update(name for name in EVENTS if getattr(control, name))
            for name in self._due:
                setattr(control, name, not self.tuner.is_probing)
            if not self.tuner.is_probing:
                self._due.clear()
        if control.should_evaluate or control.should_save:
            self.handle.lend()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        if self._train is not None:
            self._trainer.training_step, self._train = self._train, None
        has_best = args.load_best_model_at_end and state.best_model_checkpoint is not None  # it is loaded by now
        if not has_best:
            self.handle.lend()
        if has_best or not self.handle.config.exchange.drifts:  # its memory fits a rank's own parameters, to train on
            self.handle.keep()

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        if args.save_only_model:
            return
        saved, place = self._ranks.saved(), _place(args, state)
        if place.parent.is_dir():  # a hyperparameter search has its checkpoints elsewhere
            filesystem.write(str(place), saved)


def _place(args: TrainingArguments, state: TrainerState) -> Path:
    """Return the path of this rank's part of the Trainer's checkpoint at this step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}" / f"wiretune-{rank()}.pt"
