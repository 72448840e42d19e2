"""One rank's exchange over made-up gradients, and what becomes of them."""

import hashlib
import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from trainers import cost
from trainers.config import ExchangeConfig
from trainers.exchange import two_level
from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.config import SparseConfig
from trainers.exchange.outcome import Exchanged
from trainers.exchange.pacing import Unpaced
from trainers.exchange.shards import Shards
from trainers.exchange.topology import Nodes, Topology
from trainers.exchange.wires import Wires

#: Of a model's parameters; in the order of the exchange its buckets are a convolution, a layer with bias, a matrix.
SHAPES = ((20, 20), (40, 30), (30,), (5, 8, 3, 3))
BUCKET_MIB = 0.001
D = cost.num_elements(SHAPES)
LOSS = torch.tensor(1.5)


def flat(num_workers: int, group: dist.ProcessGroup | None = None) -> Wires:
    """Return the connections of a rank of `group` where each rank is a node."""
    wires = Wires(Topology.stated(num_workers, 1), dist.get_rank(group), Unpaced())
    wires.between.group = group
    return wires


def on_nodes(nodes: Nodes, rank: int) -> Wires:
    """Return the connections of a rank on `nodes`; collective."""
    wires = Wires(Topology.of(nodes), rank, Unpaced())
    wires.join(timeout_s=60)
    return wires


class Bench:
    """An exchange over made-up gradients, in units of the mean over nodes."""

    def __init__(self, config: ExchangeConfig, num_workers: int, *, wires: Wires | None = None) -> None:
        self.config = config.model_copy(update={"bucket_mib": BUCKET_MIB})
        self.wires = wires or flat(num_workers)
        self.num_nodes, self.wire = len(self.wires.topology.nodes), self.wires.between
        self.buffer = GradientBuffer.behind([Parameter(torch.zeros(shape)) for shape in SHAPES], self.config)
        self.exchange = two_level.build(self.config, self.buffer, self.wires)
        self.given = torch.zeros(D, dtype=torch.float64)  # sum of this rank's gradients, or of their momentum
        self.received = torch.zeros(D, dtype=torch.float64)  # sum over the steps of what the ranks sent

    def step(self, gradient: Tensor, level: float | None) -> Exchanged:
        self.given += self._momentum() + self.wires.share * gradient
        self.buffer.expect()
        self.buffer.zero()
        self.buffer.gradient.copy_(gradient)
        self.buffer.finish()
        outcome = self.exchange.step(LOSS, level, 0.1)
        self.received += self.buffer.gradient.double() * self.num_nodes
        return outcome

    def _momentum(self) -> Tensor:
        """Return what momentum correction adds to the coming gradient."""
        if not isinstance(self.config, SparseConfig) or self.config.momentum_correction is None:
            return torch.zeros(D)
        return self.config.momentum_correction * self.exchange.tensors().get("momentum", torch.zeros(D))

    def kept(self) -> Tensor:
        """Return what this rank has not sent of its own gradients, and, as owner, of the sums of all."""
        state = self.exchange.tensors()
        kept = state.get("residual", torch.zeros(D)).clone()
        for bucket in self.buffer.buckets:
            if f"aggregate.{bucket.index}.kept" in state:
                shards = Shards(bucket.num_elements, self.num_nodes)
                mean = state[f"aggregate.{bucket.index}.kept"]
                shards.add(kept[bucket.span], self.wire.rank, self.num_nodes * mean)
        return kept

    def lost(self) -> float:
        """Return the largest entry that is neither sent nor kept, relative to the largest one given; collective."""
        given, received = self.given, self.received
        if isinstance(self.config, SparseConfig) and self.config.memory == "ef21":
            # The mean that all ranks hold is that of what each node has sent.
            given = self.exchange.tensors().get("sent", torch.zeros(D)).double()
            received = self.num_nodes * self.buffer.gradient.double()
        sums = torch.stack([given, self.kept().double()])
        self.wires.all_reduce_sum(sums, {})
        given, kept = sums
        return float((received + kept - given).abs().max() / given.abs().max())

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return a copy of the exchange's state."""
        return {name: tensor.clone() for name, tensor in self.exchange.tensors().items()}, self.exchange.scalars()

    def load(self, state: tuple[dict[str, Tensor], dict[str, Any]]) -> None:
        tensors, scalars = state
        for name, tensor in self.exchange.tensors().items():
            tensor.copy_(tensors[name])
        self.exchange.load_scalars(json.loads(json.dumps(scalars)))

    def report(self) -> dict[str, Any]:
        return {
            "given": self.given.tolist(),
            "received": self.received.tolist(),
            "residual": self.kept().tolist(),
            "bits": digest([self.buffer.gradient]),
        }


def digest(tensors: list[Tensor]) -> str:
    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in tensors)).hexdigest()


def gradients(rank: int, step: int) -> Tensor:
    """Return gradients whose scale drifts, so that densities do."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(D, generator=generator) * (1.0 + step / 10)
