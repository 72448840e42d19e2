"""What one rank sees of a model that is attached anew, and of copies of one that is attached."""

import copy
import gc
import pickle
import weakref
from typing import Any

import torch
from attach_scenario import DILOCO, TOPK, Script
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from search.config import BoConfig
from trainers.own_loop.attach import Attached, attach
from trainers.own_loop.ddp import CompressionConfig, compress_gradients
from wiretune.loop import attach as attach_controller

POWERSGD = {"kind": "powersgd", "rank": 2}
#: What is attached first, and what then. A controller refuses the script's rate.
AGAIN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "topk, powersgd": ({"exchange": TOPK}, {"exchange": POWERSGD}),
    "topk, diloco": ({"exchange": TOPK}, {"sync": DILOCO}),
    "diloco, topk": ({"sync": DILOCO}, {"exchange": TOPK}),
    "a failed controller, topk": ({"exchange": TOPK, "controller": BoConfig(), "steps": 100}, {"exchange": TOPK}),
}
#: What is attached, and let go of while it is attached; None: by `compress_gradients`.
DROPPED: dict[str, dict[str, Any] | None] = {
    "none": {"exchange": {"kind": "none"}},
    "topk": {"exchange": TOPK},
    "cser": {"exchange": {"kind": "cser", "period": 4}},
    "diloco": {"sync": DILOCO},
    "compress_gradients": None,
}
#: What each of two ranks attaches; the first line names what differs. No difference: how a step runs.
DIFFERING: dict[str, list[dict[str, Any]]] = {
    "exchange": [{"exchange": {"kind": "bf16"}}, {"exchange": {"kind": "fp16"}}],
    "seed": [{"exchange": TOPK, "seed": 0}, {"exchange": TOPK, "seed": 1}],
    "sync": [{"sync": DILOCO}, {"sync": DILOCO | {"period": 8}}],
    "per_node": [{"exchange": TOPK, "per_node": "auto"}, {"exchange": TOPK}],
    "model": [{"exchange": TOPK}, {"exchange": TOPK, "frozen": True}],
    "": [{"exchange": TOPK}, {"exchange": TOPK | {"overlap": False}}],
}
#: How often a model is attached and detached, to give groups back in the middle of training.
ROUNDS = 12


def attached_again(rank: int, num_workers: int) -> dict[str, Any]:
    """What becomes of models that are attached more than once, and of copies."""
    return {
        "again": {name: _again(rank, *how) for name, how in AGAIN.items()},
        "dropped": {name: _dropped(rank, how) for name, how in DROPPED.items()},
        "rounds": _rounds(rank),
        "both": _both(rank),
        "foreign": _foreign(rank),
        "differing": [_refusal(rank, **each[rank]) for each in DIFFERING.values()],
        "copy of compress_gradients": _copied(rank),
        "copies": {name: _copies(rank, how) for name, how in (("dense", {"kind": "none"}), ("topk", TOPK))},
    }


def _again(rank: int, first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """A model that is attached twice, beside one that begins where it was detached."""
    script, fresh = Script(rank), Script(rank)
    held = _try(script, first)
    gc.collect()
    fresh.model.load_state_dict(script.model.state_dict())
    for each in (script, fresh):
        each.optimizer = torch.optim.SGD(each.model.parameters(), lr=0.1)
        each.handle = attach(each.model, each.optimizer, **second)
        each.train(range(6, 12))
    return {"like a fresh one": script.bits == fresh.bits, "held": [each() is not None for each in held]}


def _try(script: Script, how: dict[str, Any]) -> list["weakref.ref[Any]"]:
    """Attach and train for a while, or fail to; returns weak references to what should be gone then."""
    if "controller" in how:
        script.optimizer.param_groups[0]["lr"] = 0.0  # which no search can begin from
        try:
            attach_controller(script.model, script.optimizer, **how)
        except ValueError as error:
            assert "positive learning rate" in str(error)
        return []
    handle: Attached = attach(script.model, script.optimizer, **how)
    script.train(range(6))
    handle.detach()
    handle.detach()  # a second call does nothing
    return [weakref.ref(handle), weakref.ref(handle._hook._buffer)]


def _dropped(rank: int, how: dict[str, Any] | None) -> list[bool]:
    """Whether model and handle are still held when a script has let go of both without `detach`."""
    script = Script(rank) if how is None else Script(rank, **how)
    if how is None:
        assert isinstance(script.model, DistributedDataParallel)
        handle: Any = compress_gradients(script.model, CompressionConfig(**TOPK))
    else:
        handle = script.handle
    held = [weakref.ref(script.train(range(3)).model), weakref.ref(handle)]
    del script, handle
    gc.collect()
    return [each() is not None for each in held]


def _rounds(rank: int) -> list[str]:
    """The parameters after training in many rounds, each of which attaches and detaches."""
    script, found = Script(rank), []
    for step in range(ROUNDS):
        handle = attach(script.model, script.optimizer, exchange=TOPK)
        script.train(range(step, step + 1))
        handle.detach()
        found.append(script.bits)
    return found


def _both(rank: int) -> list[str]:
    """What is said of a second exchange beside one that is there."""
    script, other, found = Script(rank, exchange=TOPK), Script(rank), []
    assert isinstance(script.model, DistributedDataParallel) and isinstance(other.model, DistributedDataParallel)
    config = CompressionConfig(**TOPK)
    compress_gradients(other.model, config)
    calls = (
        lambda: compress_gradients(script.model, config),
        lambda: compress_gradients(other.model, config),
        lambda: attach(other.model, other.optimizer, exchange=TOPK),
        lambda: attach(other.model, other.optimizer, sync=DILOCO),
    )
    for call in calls:
        try:
            call()
        except ValueError as error:
            found.append(str(error))
    return found


def _foreign(rank: int) -> list[str]:
    """What is said of a model with a hook of somebody else, and of groups that are left over."""
    script, found = Script(rank), []
    assert isinstance(script.model, DistributedDataParallel)
    script.model.register_comm_hook(None, default_hooks.allreduce_hook)
    groups = {*distributed_c10d._world.pg_map}
    for call in (
        lambda: attach(script.model, script.optimizer, exchange=TOPK),
        lambda: compress_gradients(script.model, CompressionConfig(**TOPK)),
    ):
        try:
            call()
        except ValueError as error:
            found.append(str(error))
    left = {*distributed_c10d._world.pg_map} - groups
    return [*found, f"{len(left)} groups"]


def _refusal(rank: int, **how: Any) -> str:
    """What is said of a model in DDP that this rank attaches like that."""
    script = Script(rank)
    if how.pop("frozen", False):
        next(script.model.parameters()).requires_grad_(False)
    try:
        attach(script.model, script.optimizer, **how)
    except ValueError as error:
        return str(error)
    return ""


def _copied(rank: int) -> bool:
    """Whether a copy of a model that exchanges by `compress_gradients` has its parameters."""
    script = Script(rank)
    assert isinstance(script.model, DistributedDataParallel)
    compress_gradients(script.model, CompressionConfig(**TOPK))
    other = copy.deepcopy(script.train(range(2)).model)
    return nn.utils.parameters_to_vector(other.parameters()).equal(script.vector)


def _copies(rank: int, exchange: dict[str, Any]) -> dict[str, Any]:
    """Copies of an attached model, the average that a script keeps of it, and what training with them is billed."""
    script, plain = (Script(rank, exchange=exchange) for _ in range(2))
    assert script.handle is not None and plain.handle is not None
    average = AveragedModel(script.model)
    for step in range(3):
        script.train(range(step, step + 1))
        average.update_parameters(script.model)
    others = copy.deepcopy(script.model), pickle.loads(pickle.dumps(script.model))
    same = all(nn.utils.parameters_to_vector(other.parameters()).equal(script.vector) for other in others)
    for other in others:
        other(script.inputs[0, 0]).sum().backward()  # by torch's own all-reduce
    with script.model.no_sync():
        script.model(script.inputs[0, 0]).sum().backward()
    plain.train(range(3))
    return {
        "same": same,
        "trained alike": script.bits == plain.bits,
        "billed alike": script.handle.take_bytes() == plain.handle.take_bytes(),
        "average": float(nn.utils.parameters_to_vector(average.parameters()).norm()),
    }
