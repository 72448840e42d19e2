"""One rank's exchange under torch's DistributedDataParallel, on real data-parallel groups."""

import hashlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from trainers.own_loop.ddp import CompressedGradients, CompressionConfig, compress_gradients

KINDS: dict[str, dict[str, Any]] = {
    "none": {"kind": "none"},
    "everything": {"kind": "threshold", "density": 1.0},
    "topk": {"kind": "topk", "density": 0.05},
    "dgc": {"kind": "dgc", "density": 0.05},
    "powersgd": {"kind": "powersgd", "rank": 2},
    "qsgd": {"kind": "qsgd"},
    "on nodes": {"kind": "topk", "density": 0.05},
}
#: Of parameters in bfloat16.
IN_BFLOAT16 = {f"{kind}, bfloat16": KINDS[kind] for kind in ("none", "everything", "topk")}
#: What is refused, with the parameters' type.
REFUSED: dict[str, tuple[dict[str, Any], torch.dtype]] = {
    "unused": ({"kind": "topk", "density": 0.05}, torch.float32),
    "unused, two ways": ({"kind": "doublesqueeze"}, torch.float32),
    "unused, without a memory": ({"kind": "topk", "density": 0.05, "memory": "none"}, torch.float32),
    "unused, without a residual": ({"kind": "qsgd"}, torch.float32),
    "unused, dense": ({"kind": "fp16"}, torch.float32),
    "a range": ({"kind": "topk", "density": (0.01, 0.1)}, torch.float32),
    "float16": ({"kind": "topk", "density": 0.05}, torch.float16),
    "accordion": (
        {"kind": "topk", "density": 0.05, "levels": {"kind": "accordion", "critical": 0.5}},
        torch.float32,
    ),
    "lr_corrected": ({"kind": "topk", "density": 0.05, "lr_corrected": True}, torch.float32),
    "liec_sgd": ({"kind": "liec_sgd"}, torch.float32),
    "local steps": ({"kind": "zero_one_adam", "max_interval": 16}, torch.float32),
}


class Script:
    """A user's training script; DDP makes several buckets, and rebuilds them after the first step."""

    def __init__(self, rank: int, kind: str | None, *, device: str = "cpu") -> None:
        dtype = torch.bfloat16 if kind in IN_BFLOAT16 else torch.float32
        self.model = _model(dtype, device)
        self.scale = 1.0
        self.handle: CompressedGradients | None = None
        if kind is not None:
            config = CompressionConfig(**(KINDS | IN_BFLOAT16)[kind])
            per_node = init_device_mesh("cpu", (2, 2)) if kind == "on nodes" else 1
            self.handle = compress_gradients(self.model, config, per_node=per_node, scale=lambda: self.scale, seed=5)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.inputs = torch.randn(40, 8, 20, generator=torch.Generator().manual_seed(rank)).to(device, dtype)

    def train(self, steps: range) -> None:
        for step in steps:
            self.optimizer.zero_grad()
            rows = self.inputs[step]
            (self.scale * (self.model(rows) - rows[:, :4]).square().mean()).backward()
            gradients = [each.grad for each in self.model.parameters() if each.grad is not None]
            if all(bool(torch.isfinite(each).all()) for each in gradients):
                torch._foreach_div_(gradients, self.scale)
                self.optimizer.step()

    @property
    def weights(self) -> list[float]:
        return self.model.module[2].weight.flatten().tolist()

    @property
    def bits(self) -> str:
        tensors = [each.detach().view(torch.uint8).numpy().tobytes() for each in self.model.parameters()]
        return hashlib.sha256(b"".join(tensors)).hexdigest()


def _model(dtype: torch.dtype, device: str = "cpu", *, finds_unused: bool = False) -> DistributedDataParallel:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    layers = layers.to(device, dtype)
    return DistributedDataParallel(layers, bucket_cap_mb=0.01, find_unused_parameters=finds_unused)


def ddp(rank: int, num_workers: int) -> dict[str, Any]:
    """Parameters after training by DDP alone, by each kind, and by each kind in two halves."""
    plain = Script(rank, None)
    plain.train(range(12))
    found: dict[str, Any] = {"plain": plain.weights}
    for kind in KINDS | IN_BFLOAT16:
        whole, first, second = (Script(rank, kind) for _ in range(3))
        whole.train(range(12))
        first.train(range(6))
        assert first.handle is not None and second.handle is not None
        second.handle.load_state_dict(first.handle.state_dict())
        second.model.load_state_dict(first.model.state_dict())
        second.train(range(6, 12))
        found[kind] = {"whole": whole.bits, "halves": second.bits, "weights": whole.weights}
    return found | {"overflow": _overflow(rank), "scaled": _scaled(rank), "refused": _refused()}


def _refused() -> dict[str, str]:
    """What is said of each case, by its name."""
    told = dict.fromkeys(REFUSED, "nothing")
    for name, (fields, dtype) in REFUSED.items():
        try:
            model = _model(dtype, finds_unused=name.startswith("unused"))
            compress_gradients(model, CompressionConfig(**fields))
        except ValueError as error:
            told[name] = str(error)
    return told


def _overflow(rank: int) -> dict[str, bool]:
    """One rank's gradient is infinite in the seventh step."""
    script = Script(rank, "topk")
    assert script.handle is not None
    script.train(range(6))
    memory, bits = _residual(script), script.bits
    script.inputs[6] *= torch.inf if rank == 0 else 1.0
    script.train(range(6, 7))
    kept = torch.equal(_residual(script), memory)
    skipped = script.bits == bits
    script.train(range(7, 8))
    return {"skipped": skipped, "memory kept": kept, "goes on": script.bits != bits}


def _residual(script: Script) -> Tensor:
    assert script.handle is not None
    [state] = script.handle.state_dict().values()
    residual: Tensor = state["tensors"]["exchange.residual"]
    return residual


def _scaled(rank: int) -> dict[str, bool]:
    """A loss scale that is a power of two changes in the middle."""
    script, plain = Script(rank, "topk"), Script(rank, "topk")
    script.scale = 1024.0
    script.train(range(6))
    script.scale = 512.0
    script.train(range(6, 12))
    plain.train(range(12))
    return {"like unscaled": script.bits == plain.bits}
