"""Attach to a Trainer of Hugging Face transformers, which the extra `recipes` installs."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from pickle import UnpicklingError  # of torch.load, which with `weights_only` runs no code
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from search.config import Budget
from trainers.own_loop.attach import Attached
from trainers.own_loop.handle import num_ranks, rank, shapes_of
from trainers.spec.exchange import UpdateConfig
from trainers.spec.replica import ReplicaConfig
from wiretune.loop import attach
from wiretune.tuner import Tuner

log = logging.getLogger(__name__)
#: What a Trainer does after a step if its control says so, and of a probe's steps later.
EVENTS = ("should_evaluate", "should_save")
#: Integers of as many bytes as an entry of a parameter: their sum is exact, on any device.
INTEGERS = {2: torch.int16, 4: torch.int32}


class AttachCallback(TrainerCallback):  # type: ignore[misc]
    """Attaches when training begins: only then does `trainer` have its model in DistributedDataParallel.

    `trainer.add_callback(AttachCallback(trainer, exchange={"kind": "topk", "density": 0.01}))`; the keywords are those
    of `attach`, whose handle is `handle` from then on. Most kinds want `ddp_find_unused_parameters=False` in the
    TrainingArguments, where transformers' own default is True. A further `train()` of the same model by the same
    optimizer goes on with that handle. `train()` raises ValueError for an exchange with which a loop must not clip
    gradients, unless `max_grad_norm` is 0: by default the Trainer clips. So it does for `fp16` where ranks train apart,
    of which one alone would skip a step.

    With `controller` its search is `tuner`, which takes the losses of all micro-batches of a step as their sum, and
    sets the rates in place of the Trainer's scheduler. `steps` are the Trainer's unless a budget is given, and the run
    ends with the budget. After a probe's step the Trainer evaluates and saves later. Such a run cannot be resumed.

    Where ranks train apart, the Trainer evaluates and saves the mean of their parameters, and ends with it.

    Each rank saves its memory into the Trainer's checkpoints, and a run that resumes from one in its `output_dir` takes
    it back. Where ranks train apart that is with the parameters and buffers of each, as the Trainer saves those of rank
    0 alone. What was saved beside other weights, or by another exchange or sync, is left where it is.
    """

    def __init__(self, trainer: Trainer, **how: Any) -> None:
        self._trainer, self._how = trainer, how
        self._attached: tuple[Any, ...] = ()
        self.tuner: Tuner | None = None
        self._train: Callable[..., Tensor] | None = None  # the Trainer's, while its losses are kept
        self._losses: list[Tensor] = []  # of a step's micro-batches so far
        self._due: set[str] = set()  # events that are put off until no probe is under way
        self._own: dict[str, Tensor] = {}  # this rank's parameters and buffers while the model has the mean of all

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        if state.global_step and self._how.get("controller") is not None:
            raise ValueError(
                "a run with a `controller` cannot be resumed, as the search has no memory: resume without one, or "
                "begin a new run from the weights"
            )
        found = self._trainer.model_wrapped, self._trainer.optimizer
        if found != self._attached or state.global_step:
            self._own = {}  # the Trainer has made or loaded other weights
        self._take_back()
        if found != self._attached:
            if self._attached:
                self.handle.detach()
            self._attach(args, state)
            self._attached = found
        if self.tuner is not None and not self.tuner.is_over:
            self._listen()
        if state.global_step:
            self._resume(_place(args, state))

    def _attach(self, args: TrainingArguments, state: TrainerState) -> None:
        trainer, how = self._trainer, dict(self._how)
        if (scaler := trainer.accelerator.scaler) is not None:
            how.setdefault("scale", scaler.get_scale)
        if how.get("controller") is not None:
            if how.keys().isdisjoint(Budget.model_fields):
                how["steps"] = state.max_steps
            for group in trainer.optimizer.param_groups:  # whose rate is 0 where the scheduler warms up
                group["lr"] = group.get("initial_lr", group["lr"])
        how["check_loop"] = partial(_check, max_grad_norm=args.max_grad_norm, has_scaler=scaler is not None)
        attached: Attached | Tuner = attach(trainer.model_wrapped, trainer.optimizer, **how)
        self.tuner = attached if isinstance(attached, Tuner) else None
        self.handle = attached.handle if isinstance(attached, Tuner) else attached

    def _listen(self) -> None:
        """Keep the losses of micro-batches until the training ends: no event of a Trainer tells them."""
        train = self._train or self._trainer.training_step
        self._losses.clear()

        def training_step(*args: Any, **kwargs: Any) -> Tensor:
            loss: Tensor = train(*args, **kwargs)
            self._losses.append(loss.detach())
            return loss

        self._train, self._trainer.training_step = train, training_step

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._take_back()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *_: Any, **__: Any
    ) -> None:
        if self.tuner is not None and not self.tuner.is_over:
            self.tuner.report(torch.stack(self._losses).sum())  # each is divided by how many there are
            self._losses.clear()
            control.should_training_stop = control.should_training_stop or self.tuner.is_over
        self.on_epoch_end(args, state, control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *_: Any, **__: Any
    ) -> None:
        if self.tuner is not None:
            if control.should_training_stop and not self.tuner.is_over:
                self._take_back()
                self.tuner.stop()
            self._due.update(name for name in EVENTS if getattr(control, name))
            for name in self._due:
                setattr(control, name, not self.tuner.is_probing)
            if not self.tuner.is_probing:
                self._due.clear()
        if control.should_evaluate or control.should_save:
            self._lend()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        if self._train is not None:
            self._trainer.training_step, self._train = self._train, None
        has_best = args.load_best_model_at_end and state.best_model_checkpoint is not None  # which is loaded by now
        if not has_best:
            self._lend()
        if has_best or not self.handle.config.exchange.drifts:  # whose memory goes with a rank's own, to train further
            self._own = {}

    def _lend(self) -> None:
        """Give the model the mean of the ranks' parameters; collective."""
        if not self._own:
            self._own = {name: each.detach().clone() for name, each in self._own_tensors().items()}
            self.handle.average()

    @torch.no_grad()
    def _take_back(self) -> None:
        """Go on from where this rank was before the model had the mean of all."""
        if self._own:
            for name, tensor in self._own_tensors().items():
                tensor.copy_(self._own[name])
        self._own = {}

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        if args.save_only_model:
            return
        saved = {"methods": _methods(self.handle.config), "fingerprint": self._fingerprint()}
        place = _place(args, state)
        if place.parent.is_dir():  # a search over runs has its checkpoints elsewhere
            own = self._own or {name: each.detach() for name, each in self._own_tensors().items()}
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

    A memory goes on with another density, or with one where a range was searched, and a release may add a field.
    """
    if isinstance(saved, dict) and isinstance(now, dict):
        return all(_go_together(saved[name], now[name]) for name in saved.keys() & now.keys())
    return (_is_amount(saved) and _is_amount(now)) or bool(saved == now)


def _is_amount(value: Any) -> bool:
    """Return whether `value` is a number, or a range, which is a pair of them."""
    pair = value if isinstance(value, list) and len(value) == 2 else [value]
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in pair)


def _check(config: ReplicaConfig, *, max_grad_norm: float | None, has_scaler: bool) -> None:
    """Raise ValueError for what would part the ranks: clipping, and a GradScaler where each has its own gradients."""
    exchange = config.exchange
    trains_apart = config.sync.payload == "parameters"
    if has_scaler and (trains_apart or exchange.drifts):
        kind = config.sync.kind if trains_apart else exchange.kind
        raise ValueError(
            f"`fp16` must be off with `{kind}`: one rank alone would skip a step, and the others wait for it; give "
            "`bf16=True` to the TrainingArguments"
        )
    if max_grad_norm and (exchange.drifts or isinstance(exchange, UpdateConfig)):
        raise ValueError(
            f"`max_grad_norm` must be 0 with `{exchange.kind}`, which gradients must not be clipped with, got "
            f"{max_grad_norm:g}: give it to the TrainingArguments, whose default is 1"
        )
