"""The two levels of a rank's connections: to the ranks of its node, and from node to node."""

import hashlib
import socket
from collections.abc import Sequence
from copy import copy
from datetime import timedelta
from pathlib import Path
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.exchange.connection import BytesByPurpose, Connection, among_peers
from trainers.exchange.ledger import Ledger
from trainers.exchange.pacing import Pacer, Unpaced
from trainers.exchange.topology import Topology
from trainers.segment import Purpose
from trainers.traffic import collectives

#: A node's leader, among the ranks of the node.
LEADER = 0
#: Changes whenever a machine starts (Linux).
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class NodeLinks:
    """`within` connects the ranks of a node; `between` the nodes' leaders, and is a single worker's on other ranks.

    Where each rank is a node of its own, all is between nodes. The pacer is that of the link between nodes; `payload`
    is what goes through an exchange on these wires; `device` is the model's, None the one that the process has set.
    """

    def __init__(
        self,
        topology: Topology,
        rank: int,
        pacer: Pacer,
        *,
        payload: Purpose = "gradient",
        device: torch.device | None = None,
    ) -> None:
        node = topology.node_of(rank)
        self.topology, self.share = topology, topology.share
        self.leads = rank == node[LEADER]
        self.within = Connection(len(node), Unpaced(), Ledger(payload))
        self.between = Connection(len(topology.nodes) if self.leads else 1, pacer, Ledger(payload))
        if device is not None and device.type == "cuda":
            self.within.gpu = self.between.gpu = device
        self.num_ranks = topology.num_workers  # that are connected
        self._rank = rank

    def join(self, *, num_present: int | None = None, timeout_s: float | None = None) -> None:
        """Make the process groups; collective over the default group. Raises PeerLost.

        `num_present`: so many ranks of that group take part, each of which is a node; None: all of the topology.
        `timeout_s` None: that of the default group.
        """
        leaders = self.topology.leaders if num_present is None else range(num_present)
        self.num_ranks = self.topology.num_workers if num_present is None else num_present
        for node in self.topology.nodes:
            group = _group(node, timeout_s)
            if self._rank in node:
                self.within.group = group
        self.between.num_workers = len(leaders) if self.leads else 1
        self.between.group = _group(leaders, timeout_s)

    def apart(self) -> Self:
        """Return these wires with ledgers of their own, for another thread; not both may be used at a time."""
        twin = copy(self)
        twin.within, twin.between = self.within.apart(), self.between.apart()
        return twin

    @property
    def copies(self) -> int:
        """The divisor that turns this rank's part of a sum over all ranks into a mean over equal nodes."""
        return len(self.topology.nodes) * self.within.num_workers

    def all_reduce_sum(self, tensor: Tensor, parts: BytesByPurpose) -> None:
        """Sum `tensor` over all ranks, in place, with equal bits on all; `parts` are its bytes by purpose."""
        self.within.reduce_sum(tensor, LEADER, parts)
        self.between.all_reduce_sum(tensor, parts)
        self.within.broadcast(tensor, LEADER, parts)

    def average(self, tensors: Sequence[Tensor], purpose: Purpose, *, over: int) -> list[Tensor]:
        """Return the sums of `tensors` over all ranks, divided by `over`, which is done first: a sum could overflow."""
        flat = torch.cat([tensor.flatten() for tensor in tensors]).div_(over)
        self.all_reduce_sum(flat, {purpose: flat.nbytes})
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]

    def tell(self, tensor: Tensor, purpose: Purpose = "control") -> None:
        """Overwrite `tensor` by that of the first rank, on all."""
        for connection in (self.between, self.within):
            connection.broadcast(tensor, LEADER, {purpose: tensor.nbytes})

    def charge_sum(self, parts: BytesByPurpose) -> None:
        """Bill what `all_reduce_sum` sends of a tensor of `parts`."""
        self.within.charge(parts, collectives.reduce)
        self.between.charge(parts, collectives.all_reduce)
        self.within.charge(parts, collectives.broadcast)


def _group(ranks: Sequence[int], timeout_s: float | None) -> dist.ProcessGroup | None:
    """Return a process group of `ranks`, of which all ranks have heard; one rank needs none."""
    if len(ranks) == 1:
        return None
    with among_peers():
        group: dist.ProcessGroup = dist.new_group(
            list(ranks), timeout=default_timeout() if timeout_s is None else timedelta(seconds=timeout_s)
        )
    return group


def default_timeout() -> timedelta | None:
    """Return the default group's timeout, which torch does not give other groups; None: its backend does not say."""
    group = dist.group.WORLD
    assert group is not None
    try:
        return group._get_backend(group._device_types[0]).options._timeout
    except RuntimeError:
        return None


def found(num_workers: int, device: torch.device) -> Topology:
    """Return which ranks of the default group share a machine; collective. Raises PeerLost."""
    host = torch.tensor([_host()], device=device)
    rows = Connection(num_workers, Unpaced(), Ledger()).all_gather(host, {"control": host.nbytes})
    return Topology.by_host(rows.flatten().tolist())


def _host() -> int:
    """Return what tells this machine from others in 64 bits: its name and its boot id, as NCCL does."""
    boot_id = _BOOT_ID.read_text() if _BOOT_ID.exists() else ""
    digest = hashlib.sha256(f"{socket.gethostname()} {boot_id}".encode()).digest()
    return int.from_bytes(digest[:8], signed=True)
