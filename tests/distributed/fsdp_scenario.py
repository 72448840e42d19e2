"""What one rank of two replicas of two shards sees, when the replicas exchange gradients under FSDP2."""

import hashlib
import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard
from torch.nn.parallel import DistributedDataParallel

from trainers.own_loop.attach import attach
from trainers.own_loop.ddp import CompressionConfig
from trainers.own_loop.fsdp import compress_replicas

KINDS: dict[str, dict[str, Any]] = {
    "none": {"kind": "none"},
    "everything": {"kind": "threshold", "density": 1.0},
    "topk": {"kind": "topk", "density": 0.05},
    "dgc": {"kind": "dgc", "density": 0.05},
    "qsgd": {"kind": "qsgd"},
    "signsgd": {"kind": "signsgd"},
    "doublesqueeze": {"kind": "doublesqueeze"},
    "blockwise": {"kind": "blockwise"},
    "sparse_loco": {"kind": "sparse_loco"},
}
REFUSED: dict[str, dict[str, Any]] = {
    "powersgd": {"kind": "powersgd", "rank": 2},
    "cser": {"kind": "cser"},
    "levels": {"kind": "topk", "density": 0.05, "levels": {"kind": "warmup", "steps": 10}},
    "clip": {"kind": "dgc", "clip": 1.0},
    "a range": {"kind": "topk", "density": (0.01, 0.1)},
}


class Script:
    """A user's training script, whose model FSDP2 shards in two groups; sizes do not divide by the shards."""

    def __init__(
        self,
        rank: int,
        mesh: DeviceMesh | None,
        kind: str | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        reduced_in: torch.dtype | None = None,
        together: bool = False,
    ) -> None:
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Linear(20, 65), nn.ReLU())
        self.model: nn.Module = nn.Sequential(inner, nn.Linear(65, 3)).to(dtype)
        if mesh is None:
            self.model = DistributedDataParallel(self.model)
        else:
            policy = MixedPrecisionPolicy(reduce_dtype=reduced_in)
            fully_shard([inner, self.model[1]] if together else inner, mesh=mesh, mp_policy=policy)
            fully_shard(self.model, mesh=mesh, mp_policy=policy)
        self.handle = None if kind is None else compress_replicas(self.model, CompressionConfig(**KINDS[kind]), seed=5)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.inputs = torch.randn(40, 8, 20, generator=torch.Generator().manual_seed(rank))

    def train(self, steps: range) -> "Script":
        for step in steps:
            self.optimizer.zero_grad()
            rows = self.inputs[step]
            (self.model(rows) - rows[:, :3]).square().mean().backward()
            self.optimizer.step()
        return self

    @property
    def weights(self) -> list[Tensor]:
        """All parameters, whole."""
        return [getattr(each, "full_tensor", lambda each=each: each)().detach() for each in self.model.parameters()]

    @property
    def bits(self) -> str:
        return hashlib.sha256(b"".join(each.numpy().tobytes() for each in self.weights)).hexdigest()


def fsdp(rank: int, num_workers: int) -> dict[str, Any]:
    """Parameters after training by DDP, and by each kind, whole and in two halves."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    plain = Script(rank, None).train(range(12)).weights
    found: dict[str, Any] = {}
    for kind in KINDS:
        whole = Script(rank, mesh["shard"], kind).train(range(12))
        first, second = Script(rank, mesh["shard"], kind).train(range(6)), Script(rank, mesh["shard"], kind)
        assert whole.handle is not None and first.handle is not None and second.handle is not None
        second.handle.load_state_dict(first.handle.state_dict())
        second.model.load_state_dict(first.model.state_dict())
        found[kind] = {
            "whole": whole.bits,
            "halves": second.train(range(6, 12)).bits,
            "like ddp": all(map(_alike, whole.weights, plain)),
            "bytes": sum(whole.handle.take_bytes().values()),
        }
    group = first.handle.node_links.between.group
    found["timeout"] = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    together = Script(rank, mesh["shard"], "none", together=True).train(range(12))
    found["together"] = {"whole": together.bits, "like ddp": all(map(_alike, together.weights, plain))}
    found["in bfloat16"] = Script(rank, mesh["shard"], "topk", reduced_in=torch.bfloat16).train(range(12)).bits
    refused = (
        *REFUSED,
        "two dimensions",
        "attach",
        "float16",
        "reduced in float16",
        "twice",
        "no all-reduce",
        "a seed",
    )
    found["partly"] = {
        name: _partly_sharded(rank, mesh["shard"], name) for name in ("inner alone", "by columns", "frozen")
    }
    found["inherited"] = _inherited(rank, mesh["shard"])
    return found | {"refused": {name: _refusal(rank, mesh, name) for name in refused}}


def _inherited(rank: int, mesh: DeviceMesh) -> dict[str, Any]:
    """Whether a rank goes on with the mean of what three replicas kept of its shard; the third is as the first."""
    first, second = Script(rank, mesh, "topk").train(range(6)), Script(rank, mesh, "topk")
    assert first.handle is not None and second.handle is not None
    gathered: list[dict[str, Any]] = [{}] * 4
    dist.all_gather_object(gathered, first.handle.state_dict())
    kept = [state[f"rank-{number}"]["tensors"] for number, state in enumerate(gathered)]
    states = {}
    for number in range(6):
        own = gathered[number % 4][f"rank-{number % 4}"]
        place = {"rank": number, "num_ranks": 6, "peers": [number % 2 + 2 * replica for replica in range(3)]}
        states[f"rank-{number}"] = own | {"fields": json.dumps(json.loads(own["fields"]) | place)}
    second.handle.inherit(states, residuals="mean")
    begun = second.handle.state_dict()[f"rank-{rank}"]["tensors"]
    shard = rank % 2
    expected = {name: (2 * kept[shard][name] + kept[shard + 2][name]) / 3 for name in begun if "residual" in name}
    means = [torch.allclose(begun[name], each) for name, each in expected.items()]
    return {"means": means, "bits": second.train(range(6, 12)).bits}


def _partly_sharded(rank: int, mesh: DeviceMesh, case: str) -> str:
    """What is said of a model of which only an inner module is sharded, or by another dimension."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 4))
    fully_shard(
        model[0],
        mesh=mesh,
        shard_placement_fn=lambda parameter: Shard(parameter.ndim - 1) if case == "by columns" else None,
    )
    model[2].requires_grad_(case == "inner alone")
    try:
        compress_replicas(model, CompressionConfig(**KINDS["topk"]))
    except ValueError as error:
        return str(error)
    return "nothing"


def _alike(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def _refusal(rank: int, mesh: DeviceMesh, case: str) -> str:
    script = Script(
        rank,
        mesh if case == "two dimensions" else mesh["shard"],
        dtype=torch.float16 if case == "float16" else torch.float32,
        reduced_in=torch.float16 if case == "reduced in float16" else None,
    )
    try:
        if case == "attach":
            attach(script.model, script.optimizer)
        for _ in range(2 if case == "twice" else 1):
            fields = REFUSED.get(case, KINDS["topk"])
            compress_replicas(script.model, CompressionConfig(**fields), seed=rank if case == "a seed" else 0)
        if case == "no all-reduce":
            script.model.set_requires_all_reduce(False)
        script.train(range(1))
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "nothing"
