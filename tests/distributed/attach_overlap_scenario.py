"""What one rank sees of an exchange beside DDP's backward."""

from typing import Any

import torch
from attach_scenario import Script, attach
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from trainers.own_loop.ddp import CompressionConfig, compress_gradients

SMALL = {"bucket_mib": 0.001}  # several buckets
KINDS: dict[str, dict[str, Any]] = {
    "topk": {"kind": "topk", "density": 0.05},
    "dgc": {"kind": "dgc", "density": 0.05},
    "powersgd": {"kind": "powersgd", "rank": 2},
    "qsgd": {"kind": "qsgd"},
    "demo": {"kind": "demo"},
    "cser": {"kind": "cser", "period": 4},
}


class Reentrant(nn.Module):
    """Computes its last layers again in backward, in a task of autograd of their own."""

    def __init__(self, *, is_reentrant: bool = True) -> None:
        super().__init__()
        self.is_reentrant = is_reentrant
        self.first, self.rest = nn.Linear(20, 64), nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, rows: Tensor) -> Tensor:
        rest: Tensor = checkpoint(self.rest, self.first(rows).relu(), use_reentrant=self.is_reentrant)
        return rest


def overlapped(rank: int, num_workers: int) -> dict[str, Any]:
    """Training with and without overlap, and what is there when backward comes to the first layer."""
    return {
        "bits": {
            name: [
                Script(rank, exchange=kind | SMALL | {"overlap": each}).train(range(12)).bits for each in (True, False)
            ]
            for name, kind in KINDS.items()
        },
        "by compress_gradients": [_compressed(rank, overlap=each) for each in (True, False)],
        "filled": {name: _filled(rank, **how) for name, how in (("", {}), ("serial", {"overlap": False}))},
        "finding unused": _overlaps(Script(rank, finds_unused=True, exchange={"kind": "fp16"} | SMALL)),
        "sync batch norm": _overlaps(_with_sync_batch_norm(rank)),
        "static graph": [_static(rank, overlap=each) for each in (True, False)],
        "reentrant": [_reentrant(rank, overlap=each) for each in (True, False)],
        "reentrant later": _reentrant_later(rank),
    }


def _compressed(rank: int, *, overlap: bool) -> str:
    script = Script(rank)
    assert isinstance(script.model, DistributedDataParallel)
    compress_gradients(script.model, CompressionConfig(**KINDS["topk"], **SMALL, overlap=overlap))
    return script.train(range(12)).bits


def _filled(rank: int, *, overlap: bool = True) -> list[bool]:
    """Whether the first bucket of an exchange that is under way is filled, when backward comes to the first layer."""
    script = Script(rank, exchange=KINDS["topk"] | SMALL | {"overlap": overlap})
    assert script.handle is not None and isinstance(script.model, DistributedDataParallel)
    hook, found = script.handle._hook, list[bool]()

    def look(*_: object) -> None:
        if script.model.require_backward_grad_sync:
            found.append(hook._step is not None and hook._buffer._filled[0].is_set())

    script.model.module[0].register_full_backward_pre_hook(look)
    script.train(range(4))
    return found


def _overlaps(script: Script) -> bool:
    assert script.handle is not None
    return script.handle._hook._overlaps


def _with_sync_batch_norm(rank: int) -> Script:
    script = Script(rank, norm=True)
    script.model = nn.SyncBatchNorm.convert_sync_batchnorm(script.model)
    script.handle = attach(script.model, script.optimizer, exchange=KINDS["topk"])
    return script


def _static(rank: int, *, overlap: bool) -> str:
    """The parameters of a model whose graph DDP takes for static, so that it delays its first buckets."""
    script = Script(rank)
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    script.model = DistributedDataParallel(layers, bucket_cap_mb=0.01, static_graph=True)
    script.optimizer = torch.optim.SGD(script.model.parameters(), lr=0.1)
    attach(script.model, script.optimizer, exchange=KINDS["topk"] | SMALL | {"overlap": overlap})
    for rows in script.inputs[:12, 0]:  # DDP refuses `no_sync` before it knows the graph
        script.optimizer.zero_grad()
        (script.model(rows) - rows[:, :4]).square().mean().backward()
        script.optimizer.step()
    return script.bits


def _reentrant(rank: int, *, overlap: bool) -> Any:
    """The parameters of a model whose buckets come from several tasks, and whether an exchange ever ran beside it."""
    script, began = Script(rank), list[bool]()
    torch.manual_seed(0)
    script.model = DistributedDataParallel(Reentrant(), bucket_cap_mb=0.01)
    script.optimizer = torch.optim.SGD(script.model.parameters(), lr=0.1)
    script.handle = attach(script.model, script.optimizer, exchange=KINDS["topk"] | SMALL | {"overlap": overlap})
    hook = script.handle._hook
    script.model.module.first.register_full_backward_pre_hook(lambda *_: began.append(hook._step is not None))
    return script.train(range(12)).bits, any(began)


def _reentrant_later(rank: int) -> str:
    """What is said of a model whose buckets come from several tasks in a later step."""
    script = Script(rank)
    torch.manual_seed(0)
    script.model = DistributedDataParallel(Reentrant(is_reentrant=False), bucket_cap_mb=0.01)
    script.optimizer = torch.optim.SGD(script.model.parameters(), lr=0.1)
    script.handle = attach(script.model, script.optimizer, exchange=KINDS["topk"])  # in one bucket: nothing is sent yet
    script.train(range(3))
    script.model.module.is_reentrant = True
    try:
        script.train(range(3, 4))
    except RuntimeError as error:
        return str(error)
    return "nothing"
