"""One rank's exchange over made-up gradients, and its results."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from trainers.exchange.buffer import GradientBuffer
from trainers.exchange.connection import BytesByPurpose, Connection
from trainers.exchange.ledger import Ledger
from trainers.exchange.node_links import NodeLinks
from trainers.exchange.pacing import Unpaced
from trainers.exchange.step_result import Exchanged
from trainers.exchange.sum_by_owner import Shards
from trainers.exchange.topology import Nodes, Topology
from trainers.methods.build import between_nodes
from trainers.methods.exchange.auto.spec import ExchangeConfig
from trainers.methods.exchange.sparse_loco.spec import SparseLoCoConfig
from trainers.spec.sparse import SparseConfig
from trainers.traffic import collectives
from trainers.traffic.block_shards import BlockShards

#: Of a model's parameters; in the order of the exchange its buckets are a convolution, a layer with bias, a matrix.
SHAPES = ((20, 20), (40, 30), (30,), (5, 8, 3, 3))
BUCKET_MIB = 0.001
D = collectives.num_elements(SHAPES)
LOSS = torch.tensor(1.5)


class CheckedWire(Connection):
    """Charges for as many bytes as are handed to the network, or fails."""

    def all_reduce_sum(self, tensor: Tensor, parts: BytesByPurpose) -> None:
        assert sum(parts.values()) == tensor.nbytes
        super().all_reduce_sum(tensor, parts)

    def all_gather(self, tensor: Tensor, parts: BytesByPurpose) -> Tensor:
        assert sum(parts.values()) == tensor.nbytes
        return super().all_gather(tensor, parts)

    def all_to_all(self, rows: Tensor, parts: BytesByPurpose) -> Tensor:
        assert sum(parts.values()) == rows.nbytes
        return super().all_to_all(rows, parts)

    def reduce_sum(self, tensor: Tensor, to: int, parts: BytesByPurpose) -> None:
        assert sum(parts.values()) == tensor.nbytes
        super().reduce_sum(tensor, to, parts)

    def send(self, tensor: Tensor, to: int, parts: BytesByPurpose) -> None:
        assert sum(parts.values()) == tensor.nbytes
        super().send(tensor, to, parts)

    def broadcast(self, tensor: Tensor, source: int, parts: BytesByPurpose) -> None:
        assert sum(parts.values()) == tensor.nbytes
        super().broadcast(tensor, source, parts)


@dataclass(frozen=True)
class Place:
    """This rank, among the ranks that it exchanges with; `group` None: the default one."""

    rank: int
    num_workers: int
    group: dist.ProcessGroup | None = None
    shared: NodeLinks | None = None  # of ranks that share nodes

    @classmethod
    def on_nodes(cls, rank: int, nodes: Nodes) -> "Place":
        """Return the place of a rank on `nodes`; collective."""
        node_links = _checked(NodeLinks(Topology.of(nodes), rank, Unpaced()))
        node_links.join(timeout_s=60)
        return cls(rank, node_links.topology.num_workers, shared=node_links)

    def node_links(self) -> NodeLinks:
        """Return the connections; unless nodes are shared, each rank is a node."""
        if self.shared is not None:
            return self.shared
        node_links = _checked(NodeLinks(Topology.stated(self.num_workers, 1), self.rank, Unpaced()))
        node_links.between.group = self.group
        return node_links


def _checked(node_links: NodeLinks) -> NodeLinks:
    node_links.within, node_links.between = (
        CheckedWire(connection.num_workers, Unpaced(), Ledger())
        for connection in (node_links.within, node_links.between)
    )
    return node_links


class Bench:
    """An exchange over made-up gradients, and the sums of what went in and what came out, times learning rates.

    In units of the mean over nodes.
    """

    def __init__(self, config: ExchangeConfig, place: Place) -> None:
        self.config = config.model_copy(update={"bucket_mib": BUCKET_MIB})
        self.place, self.num_workers = place, place.num_workers
        self.buffer = GradientBuffer.behind([Parameter(torch.zeros(shape)) for shape in SHAPES], self.config)
        self.node_links = place.node_links()
        self.num_nodes, self.connection = len(self.node_links.topology.nodes), self.node_links.between
        self.exchange = between_nodes(self.config, self.buffer, self.node_links)
        self.given = torch.zeros(D, dtype=torch.float64)  # sum of this rank's gradients, or of their momentum
        self.received = torch.zeros(D, dtype=torch.float64)  # sum over the steps of what the ranks sent
        self.rate = 1.0

    def step(self, gradient: Tensor, level: float | None, *, loss: Tensor = LOSS, rate: float = 1.0) -> Exchanged:
        self.given += rate * (self._momentum() + self.node_links.share * gradient - self._faded())
        self.buffer.expect()
        self.buffer.gradient.copy_(gradient)
        self.buffer.finish()
        outcome = self.exchange.step(loss, level, rate)
        self.received += rate * self.buffer.gradient.double() * self.num_nodes
        self.rate = rate
        return outcome

    def _momentum(self) -> Tensor:
        """Return what momentum correction adds to the coming gradient."""
        if not isinstance(self.config, SparseConfig) or self.config.momentum_correction is None:
            return torch.zeros(D)
        return self.config.momentum_correction * self.exchange.tensors().get("momentum", torch.zeros(D))

    def _faded(self) -> Tensor:
        """Return what a memory that decays loses of itself before the coming gradient."""
        if not isinstance(self.config, SparseLoCoConfig):
            return torch.zeros(D)
        return (1 - self.config.decay) * self.exchange.tensors().get("residual", torch.zeros(D))

    def kept(self) -> Tensor:
        """Return what this rank has not sent of its own gradients, and, as owner, of the sums of all."""
        state = self.exchange.tensors()
        kept = state.get("residual", torch.zeros(D)).clone()
        for bucket in self.buffer.buckets:
            if f"server.{bucket.index}" in state:
                shards = BlockShards(bucket.num_elements, self.num_nodes, self.config.block)
                own = kept[bucket.span][shards.span(self.connection.rank)]
                own += self.num_nodes * state[f"server.{bucket.index}"][: len(own)]
            if f"aggregate.{bucket.index}.kept" in state:
                shards = Shards(bucket.num_elements, self.num_nodes)
                mean = state[f"aggregate.{bucket.index}.kept"]
                shards.add(kept[bucket.span], self.connection.rank, self.num_nodes * mean)
        return kept

    def lost(self) -> float:
        """Return the largest entry that is neither sent nor kept, relative to the largest one given; collective."""
        given, received = self.given, self.received
        if isinstance(self.config, SparseConfig) and self.config.memory == "ef21":
            # The mean that all ranks hold is that of what each node has sent.
            given = self.exchange.tensors().get("sent", torch.zeros(D)).double()
            received = self.num_nodes * self.buffer.gradient.double()
        sums = torch.stack([given, self.rate * self.kept().double()])
        self.node_links.all_reduce_sum(sums, {"control": sums.nbytes})
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


def gradients(rank: int, step: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return gradients as computed in `dtype`, in float32, whose scale drifts, so that densities do."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return (torch.randn(D, generator=generator) * (1.0 + step / 10)).to(dtype).float()
