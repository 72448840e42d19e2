"""The optimizer of a job, for a loop of the user's own."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from trainers.methods.optimizer import optimizers
from trainers.methods.optimizer.spec import OptimizerConfig, OwnOptimizerConfig
from trainers.spec.ranges import Config
from trainers.spec.refusals import checked
from trainers.workload import WorkloadError

#: A job's optimizer as its configuration, as its fields, or as its kind alone.
Optimizing = OptimizerConfig | Mapping[str, Any] | str


class _Described(Config):
    optimizer: OptimizerConfig


def build_optimizer(
    model: nn.Module, optimizer: Optimizing, *, groups: Sequence[Mapping[str, Any]] | None = None
) -> torch.optim.Optimizer:
    """Return the torch optimizer by which a job with this `optimizer` trains `model`.

    A learned schedule names the kind; the other knobs are those of the job, else the kind's defaults. Of a range it has
    the first value, until the schedule's scheduler sets another. The rates of `groups`, torch parameter groups,
    multiply the learning rate; without `groups` all parameters of `model` are one. `warmup_steps` are left to whoever
    sets the rates. Schedule-Free begins in its training mode.

    Raises ValueError for what a job would refuse, for `own`, which only a workload builds, and for groups that do not
    fit.
    """
    given = {"kind": optimizer} if isinstance(optimizer, str) else optimizer
    config = checked(_Described, {"optimizer": given}).optimizer
    if isinstance(config, OwnOptimizerConfig):
        raise ValueError(
            "`optimizer` must be one that Wiretune builds, got `own`, which is your workload's: build that"
        )
    try:
        return optimizers.build_alone(config, model, [{"params": [*model.parameters()]}] if groups is None else groups)
    except WorkloadError as error:
        raise ValueError(f"`groups`: {error}") from None
