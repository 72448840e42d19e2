"""Checks what `attach` is given, and refuses what it cannot attach."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainers.methods import registry
from trainers.methods.optimizer.spec import FromExchangeConfig, OptimizerConfig, OwnOptimizerConfig, SgdConfig
from trainers.methods.replica_config import MAX_THREADS, ReplicaConfig
from trainers.own_loop.ddp import TYPES, check_entries, check_types, check_unused
from trainers.own_loop.handle import num_ranks
from trainers.own_loop.outlet import check_free
from trainers.own_loop.together import each_of
from trainers.spec.exchange import ExchangeBase, UpdateConfig, group_conflict
from trainers.spec.levels import AccordionConfig
from trainers.spec.refusals import checked
from trainers.spec.sync import SyncBase
from trainers.spec.workloads import OwnWorkload
from trainers.training.model import is_scattered, overlap

#: A part of a job, as its configuration or as its fields.
Exchanging = ExchangeBase | Mapping[str, Any]
Syncing = SyncBase | Mapping[str, Any]
#: Raises ValueError for a configuration that it refuses.
Check = Callable[[ReplicaConfig], None]
#: Exchanges that return a direction to step by.
DIRECTIONS = [each.kind for each in registry.of("exchange") if issubclass(each.config, UpdateConfig)]


def job_config(
    optimizer: torch.optim.Optimizer, exchange: Exchanging | None, sync: Syncing | None, *, seed: int
) -> ReplicaConfig:
    """Return what a job with this optimizer would train by."""
    exchange = {"kind": "none"} if exchange is None else exchange
    sync = {"kind": "every_step"} if sync is None else sync
    for name, part, example in (("exchange", exchange, "topk"), ("sync", sync, "diloco")):
        if not isinstance(part, ExchangeBase | SyncBase | Mapping):
            raise ValueError(f"`{name}` must be a part of a job, as {{'kind': '{example}'}}, got {part!r}")
    described = _described(optimizer, exchange)
    config = checked(
        ReplicaConfig,
        {
            "workload": OwnWorkload(factory="script:model"),  # nobody builds it
            "optimizer": described,
            "exchange": exchange,
            "sync": sync,
            "seed": seed,
            "threads": min(torch.get_num_threads(), MAX_THREADS),
        },
    )
    if message := group_conflict(config.exchange, described, optimizer.param_groups):
        raise ValueError(f"`optimizer`: {message}")
    takes_back = isinstance(config.exchange, UpdateConfig) and config.exchange.drifts
    if takes_back and any(group.get("maximize") for group in optimizer.param_groups):
        raise ValueError(
            f"`optimizer` must minimize with `{config.exchange.kind}`, whose ranks take back steps of their own, got "
            "`maximize=True`: leave it out, and train on the negative loss"
        )
    if config.sync.sets_rates:
        raise ValueError(
            f"`sync` must leave rates and gradients to the loop, and `{config.sync.kind}` sets its own: give "
            "{'kind': 'local_sgd'}, or train it as a job"
        )
    if config.exchange.competes:
        raise ValueError(f"`exchange` must be of one kind: nothing chooses here, got `{config.exchange.kind}`")
    levels = getattr(config.exchange, "levels", None)
    if isinstance(levels, AccordionConfig) and levels.epoch_steps is None:
        raise ValueError("`accordion` needs `epoch_steps`: nothing says here how long an epoch of the data is")
    return config


def ddp_in(model: nn.Module) -> DistributedDataParallel | None:
    """Return the DistributedDataParallel that is `model`, or in it; raises ValueError for several, and for FSDP."""
    if scattered := next((each for each in model.modules() if is_scattered(each)), None):
        raise ValueError(
            f"`model` must hold its parameters whole, once, got a {type(scattered).__name__}: give the module that it "
            "wraps; replicas that FSDP2 shards have `compress_replicas`"
        )
    found = [each for each in model.modules() if isinstance(each, DistributedDataParallel)]
    if len(found) > 1:
        raise ValueError(
            f"`model` must have one DistributedDataParallel, got {len(found)}: wrap all that is trained in a single one"
        )
    return found[0] if found else None


def check_ddp(ddp: DistributedDataParallel | None, model: nn.Module, config: ReplicaConfig) -> None:
    """Raise ValueError unless `ddp` is there where its hook is needed, of all ranks, and free for the exchange."""
    num_workers = num_ranks()
    needs_ddp = num_workers > 1 or isinstance(config.exchange, UpdateConfig)
    if ddp is None and needs_ddp and not config.averages_parameters:
        raise ValueError(
            f"`model` must be a DistributedDataParallel, which exchanges gradients in every step, got "
            f"{type(model).__name__}: wrap it, or give `sync={{'kind': 'diloco'}}`"
        )
    if ddp is None and num_workers > 1:
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if tensor.layout is not torch.strided:
                raise ValueError(
                    f"`model`: `{name}` must be dense to become that of rank 0, got {tensor.layout}: add `.to_dense()`"
                )
    if ddp is not None:
        check_free(ddp)
    if ddp is not None and ddp.process_group.size() != num_workers:
        raise ValueError(f"`model` must be one of all {num_workers} ranks, got one of {ddp.process_group.size()}")
    if ddp is None or config.averages_parameters:
        return
    check_unused(ddp, config.exchange)
    within = {*ddp.parameters()}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter not in within:
            raise ValueError(
                f"`model`: parameter `{name}` must be in the DistributedDataParallel to be exchanged: wrap the module "
                "that holds it, too, or freeze it"
            )


def check_steps(config: ReplicaConfig, optimizer: torch.optim.Optimizer, scale: Callable[[], float] | None) -> None:
    """Raise ValueError for what would part the ranks: steps that one of them skips, or a second iterate."""
    if config.parameters_may_differ and scale is not None:
        raise ValueError(f"`scale` must be left out with `{config.differ_under}`: one rank alone would skip a step")
    for each in each_of(optimizer) if config.averages_parameters else ():
        if callable(getattr(each, "eval", None)):
            raise ValueError(
                f"`optimizer` must train what it evaluates where ranks meet, got {type(each).__name__}, whose second "
                "iterate would stay apart: take another, or train Schedule-Free as a job"
            )


def follows_rate(config: ReplicaConfig) -> bool:
    """Return whether an exchange of `config` goes by the optimizer's learning rate."""
    exchange, levels = config.exchange, getattr(config.exchange, "levels", None)
    follows = any(getattr(exchange, name, False) for name in ("lr_corrected", "follows_rate"))
    return follows or exchange.drifts or (isinstance(levels, AccordionConfig) and levels.follow_decay)


def check_rates(optimizer: torch.optim.Optimizer, user: str) -> None:
    """Raise ValueError for a group without a learning rate, as of Adafactor, which `user` goes by."""
    for index, group in enumerate(optimizer.param_groups):
        if group.get("lr") is None:
            raise ValueError(
                f"`optimizer` must have a learning rate for {user}, and group {index} has no `lr`: give one"
            )


def trained_parameters(model: nn.Module, optimizer: torch.optim.Optimizer, config: ReplicaConfig) -> list[nn.Parameter]:
    """Return the parameters that are trained.

    Raises ValueError if there are none, if some cannot be exchanged, if `optimizer` trains others, too, or if, where
    ranks train apart, another optimizer would: its step after an average would part them.
    """
    parameters = [each for each in model.parameters() if each.requires_grad]
    if not parameters:
        raise ValueError("`model` must have a parameter that is trained, and it has none, or all are frozen")
    stepped = {each for group in optimizer.param_groups for each in group["params"] if each.requires_grad}
    for each in stepped.difference(parameters):
        raise ValueError(
            f"`optimizer` must train parameters of `model` alone, got another of shape {tuple(each.shape)}, which "
            "nobody would exchange or put back: give the module that holds it, too; master copies cannot be attached"
        )
    left_out = [name for name, each in model.named_parameters() if each.requires_grad and each not in stepped]
    if left_out and config.parameters_may_differ:
        raise ValueError(
            f"`optimizer` must train all that `model` trains, as ranks meet when it steps, and none of its groups has "
            f"parameter `{left_out[0]}`: freeze it, or give a list of all optimizers"
        )
    check_types(parameters, (torch.float32,) if config.parameters_may_differ else TYPES)
    check_entries(model)
    if fault := overlap(model):
        raise ValueError(f"`model`: {fault}")
    return parameters


def _described(optimizer: torch.optim.Optimizer, exchange: Exchanging) -> OptimizerConfig:
    """Return the job's optimizer that is like `optimizer`; of several SGDs, one with the momentum that any has.

    Plain SGD steps by a direction that the exchange returns, and its weight decay is decoupled then.
    """
    if any(type(each) is not torch.optim.SGD for each in each_of(optimizer)):
        return OwnOptimizerConfig()
    groups = optimizer.param_groups
    group = next((each for each in groups if each["momentum"]), groups[0])  # exchanges that need plain SGD refuse it
    kind = exchange.kind if isinstance(exchange, ExchangeBase) else exchange.get("kind")
    if kind in DIRECTIONS and not group["momentum"]:
        return FromExchangeConfig(weight_decay=group["weight_decay"])
    return SgdConfig(**{name: group[name] for name in ("momentum", "nesterov", "weight_decay")})


def takes_backwards_for_steps(exchange: ExchangeBase) -> bool:
    """Return whether a second exchange in a step would count its gradient again: in a momentum, or a rank's own part.

    Other kinds send what they kept of the first, so that the sum comes out right.
    """
    return isinstance(exchange, UpdateConfig) or exchange.drifts or exchange.without_momentum is not None
