"""Attach to a Trainer of Lightning, which the extra `recipes` installs."""

import os
from contextlib import suppress
from functools import partial
from pathlib import PurePath
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import Strategy

from trainers import filesystem
from trainers.own_loop.attach import Attached
from trainers.own_loop.handle import rank
from wiretune.loop import attach
from wiretune.rank_state import RankState, Words, check_loop

_WORDS = Words(
    scaler="`precision='16-mixed'`",
    no_scaler="`precision='bf16-mixed'` to the Trainer",
    clip="`gradient_clip_val`",
    no_clip="leave it out of the Trainer",
)


class AttachCallback(Callback):  # type: ignore[misc]
    """Attach when training begins: only then has the Trainer wrapped its model in DistributedDataParallel.

    `Trainer(strategy="ddp", callbacks=[AttachCallback(exchange={"kind": "powersgd", "rank": 4})])`. The keywords are
    those of `attach`, and `handle` is the handle that it returned. The module must have one optimizer. Each further
    `fit` attaches anew.

    `fit` raises ValueError if `gradient_clip_val` is set with an exchange that forbids clipping. It also does for a
    GradScaler where ranks train apart: one rank alone would skip a step.

    Where ranks train apart, the Trainer validates and saves the mean of their parameters and buffers, and ends with it.

    Each rank saves its memory next to the Trainer's checkpoint, as `NAME.wiretune-0.pt` beside `NAME.ckpt`. Where ranks
    train apart, the file also has the rank's own parameters and buffers. A `fit` from the checkpoint restores them, but
    not what was saved beside other weights, or by another exchange or sync. Both files are removed together.
    """

    handle: Attached

    def __init__(self, **how: Any) -> None:
        if how.get("controller") is not None:
            raise ValueError(
                "`controller` must be left out: Lightning would validate and save within its probes; take Fabric, or "
                "a loop of your own, and call `report` in it"
            )
        self._how = how
        self._strategy: Strategy | None = None  # whose checkpoints have parts beside them
        self._ranks: RankState | None = None  # once it has attached

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        if stage == "fit" and self._strategy is not trainer.strategy:
            self._strategy = trainer.strategy
            self._save_beside(trainer.strategy)

    def _save_beside(self, strategy: Strategy) -> None:
        """Have each rank save and remove its part with every checkpoint. No hook of a Trainer gets the path."""
        save, remove = strategy.save_checkpoint, strategy.remove_checkpoint

        def save_checkpoint(checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
            if (ranks := self._ranks) is None:
                save(checkpoint, filepath, storage_options)
                return
            was_lent = bool(self.handle.own)
            self.handle.lend()  # in place: the checkpoint's tensors are the module's
            part = ranks.saved() if "optimizer_states" in checkpoint else None  # without them it has weights alone
            save(checkpoint, filepath, storage_options)
            if not was_lent:
                self.handle.take_back()
            if part is not None:
                filesystem.write(_place(filepath), part)

        def remove_checkpoint(filepath: Any) -> None:
            remove(filepath)
            with suppress(FileNotFoundError), filesystem.reaching(_place(filepath)) as (files, path):
                files.rm_file(path)

        strategy.save_checkpoint, strategy.remove_checkpoint = save_checkpoint, remove_checkpoint

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        if (num_optimizers := len(trainer.optimizers)) != 1:
            raise ValueError(f"`configure_optimizers` must return one optimizer to attach, got {num_optimizers}")
        how, scaler = dict(self._how), getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None:
            how.setdefault("scale", scaler.get_scale)
        how["check_loop"] = partial(
            check_loop, words=_WORDS, clips_at=trainer.gradient_clip_val, has_scaler=scaler is not None
        )
        if self._ranks is not None:  # from an earlier `fit`, whose optimizer is gone: only we still hold its handle
            self._ranks = None
            self.handle.settle()
            self.handle.node_links.leave()
            del self.handle
        self.handle = attach(trainer.model, trainer.optimizers[0], **how)
        self._ranks = RankState(trainer.model, self.handle)
        if trainer.ckpt_path is not None:
            self._ranks.resume(_place(trainer.ckpt_path))

    def on_train_batch_start(self, *_: Any) -> None:
        if self._ranks is not None:
            self.handle.take_back()

    def on_validation_start(self, trainer: Trainer, module: LightningModule) -> None:
        if self._ranks is not None and trainer.state.fn == "fit" and not trainer.sanity_checking:
            self.handle.lend()

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        if self._ranks is not None:
            self.handle.lend()


def _place(checkpoint: Any) -> str:
    """Return the path of this rank's part of the Trainer's `checkpoint`: beside the file itself, if that is a link."""
    path = str(checkpoint)
    path = path if "://" in path else os.path.realpath(path)
    return f"{path.removesuffix(PurePath(path).suffix)}.wiretune-{rank()}.pt"
