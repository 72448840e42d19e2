"""A rank's connections on two levels: within its node, and between nodes."""

import hashlib
import socket
from collections.abc import Sequence
from copy import copy
from datetime import timedelta
from operator import itemgetter
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
    """Connections of a rank: `within` connects the ranks of its node, `between` connects the nodes' leaders.

    On ranks that do not lead, `between` has a single worker. If each rank is a node, all traffic is between nodes. The
    pacer emulates the link between nodes. `payload` is the purpose that an exchange's data is billed as. `device` is
    the model's; None: the one that the process has set.
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

        `num_present` is the number of ranks that take part, each of which is a node; None: all of the topology.
        `timeout_s` None: the timeout of the default group.
        """
        leaders = self.topology.leaders if num_present is None else range(num_present)
        self.num_ranks = self.topology.num_workers if num_present is None else num_present
        for node in self.topology.nodes:
            group = _group(node, timeout_s)
            if self._rank in node:
                self.within.group = group
        self.between.num_workers = len(leaders) if self.leads else 1
        self.between.group = _group(leaders, timeout_s)

    def leave(self) -> None:
        """Give the process groups back to torch; every rank calls this, and sends nothing by them any more."""
        for connection in (self.within, self.between):
            group, connection.group = connection.group, None
            if group is not None and dist.is_initialized():
                dist.destroy_process_group(group)

    def apart(self) -> Self:
        """Return these connections with their own ledgers, for another thread. Never use both at the same time."""
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
        """Divide `tensors` by `over`, and return their sums over all ranks. Dividing first avoids overflow."""
        flat = torch.cat([tensor.flatten() for tensor in tensors]).div_(over)
        self.all_reduce_sum(flat, {purpose: flat.nbytes})
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]

    def tell(self, tensor: Tensor, purpose: Purpose = "control") -> None:
        """Overwrite `tensor` on all ranks with that of the first rank."""
        for connection in (self.between, self.within):
            connection.broadcast(tensor, LEADER, {purpose: tensor.nbytes})

    def gather(self, vector: Tensor, purpose: Purpose = "control") -> list[Tensor]:
        """Return the vectors of all ranks, of any lengths, by rank on the first one; [] on the others.

        Each is sent to the leader of its node, and all of a node together to the first rank.
        """
        of_node = self.within.gather(vector, purpose)
        if not self.leads:
            return []
        lengths = self.between.gather(torch.tensor([len(each) for each in of_node]), purpose)
        joined = self.between.gather(torch.cat(of_node) if len(of_node) > 1 else vector, purpose)
        vectors = [
            part for node, sizes in zip(joined, lengths, strict=True) for part in torch.split(node, sizes.tolist())
        ]
        # Fewer vectors than ranks, if some are away: each is a node then, and the others keep their order.
        ranks = [rank for node in self.topology.nodes for rank in node]
        return [part for _, part in sorted(zip(ranks, vectors, strict=False), key=itemgetter(0))]

    def charge_sum(self, parts: BytesByPurpose) -> None:
        """Charge the ledgers for an `all_reduce_sum`; `parts` are the tensor's bytes by purpose."""
        self.within.charge(parts, collectives.reduce)
        self.between.charge(parts, collectives.all_reduce)
        self.within.charge(parts, collectives.broadcast)


def _group(ranks: Sequence[int], timeout_s: float | None) -> dist.ProcessGroup | None:
    """Return a process group of `ranks`; None for a single rank. All ranks must call this."""
    if len(ranks) == 1:
        return None
    with among_peers():
        group: dist.ProcessGroup = dist.new_group(
            list(ranks), timeout=default_timeout() if timeout_s is None else timedelta(seconds=timeout_s)
        )
    return group


def default_timeout() -> timedelta | None:
    """Return the default group's timeout; None: its backend does not tell. Torch does not pass it to other groups."""
    group = dist.group.WORLD
    assert group is not None
    try:
        return group._get_backend(group._device_types[0]).options._timeout
    except RuntimeError:
        return None


def found(num_workers: int, device: torch.device) -> Topology:
    """Find the ranks of the default group that share a machine; collective. Raises PeerLost."""
    host = torch.tensor([_host()], device=device)
    rows = Connection(num_workers, Unpaced(), Ledger()).all_gather(host, {"control": host.nbytes})
    return Topology.by_host(rows.flatten().tolist())


def _host() -> int:
    """Return 64 bits that identify this machine, from its name and boot id, as NCCL does."""
    boot_id = _BOOT_ID.read_text() if _BOOT_ID.exists() else ""
    digest = hashlib.sha256(f"{socket.gethostname()} {boot_id}".encode()).digest()
    return int.from_bytes(digest[:8], signed=True)
