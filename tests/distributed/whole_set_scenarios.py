"""Scenarios of metrics of the whole validation set: what ranks that evaluate shares of it come to."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sync_scenarios import joined_replica
from torch import Tensor

from trainers.exchange.connection import PIECE_BYTES, Connection
from trainers.exchange.ledger import Ledger
from trainers.exchange.pacing import build
from trainers.exchange.topology import Nodes
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import SgdConfig
from trainers.methods.replica_config import ReplicaConfig
from trainers.spec.link import EmulateLink
from trainers.spec.partition import IidPartition
from trainers.spec.workloads import OwnWorkload
from trainers.traffic.collectives import Traffic
from trainers.training.replica import Replica

MODELS = str(Path(__file__).parents[1] / "trainers")
#: The nodes of so many ranks: neighbours are not on one node.
NODES: dict[int, Nodes] = {2: ((0, 1),), 3: ((0, 2), (1,))}
#: Factories of workloads, and the number of their samples; None: as many as they have. 2 are fewer than 3 ranks.
SETS = {"Ranked": ("Ranked", None), "Echo": ("Echo", 50), "few": ("Echo", 2)}


def workload(name: str) -> OwnWorkload:
    factory, count = SETS[name]
    params = {} if count is None else {"count": count}
    return OwnWorkload(factory=f"ranked_models:{factory}", params=params, path=MODELS)


def whole_set(rank: int, num_workers: int) -> dict[str, Any]:
    """Each rank's metrics, and what a gather of vectors of 0, 3 and 6 numbers gives and sends."""
    found: dict[str, Any] = {}
    for place, nodes in {"apart": None, "on nodes": NODES[num_workers]}.items():
        replicas = {
            name: joined_replica(rank, num_workers, nodes=nodes, workload=workload(name), partition=IidPartition())
            for name in SETS
        }
        found[place] = {name: replica.evaluate().metrics for name, replica in replicas.items()}
        links = replicas["few"]._node_links
        found[place]["gathered"] = [each.tolist() for each in links.gather(torch.full((3 * rank,), rank))]
        found[place]["sent"] = [links.between.ledger.take(), links.within.ledger.take()]
    return found


class Noted:
    """A pacer that notes what it is to wait for, and does not wait."""

    link = None

    def __init__(self) -> None:
        self.traffic: list[Traffic] = []

    def finish(self, started: float, traffic: Traffic) -> None:
        self.traffic.append(traffic)


def whole_set_of_the_present(rank: int, num_workers: int) -> dict[str, float]:
    """Metrics where the second of more ranks is away, so that those after it move up."""
    present = [0, *range(2, num_workers + 1)]
    parts = {"workload": workload("Echo"), "optimizer": SgdConfig(), "exchange": NoneConfig()}
    replica = Replica(ReplicaConfig(**parts), present[rank], num_workers + 1, device="cpu")
    replica._present = present
    replica._node_links.join(num_present=num_workers)
    return replica.evaluate().metrics


def paced_gather(rank: int, num_workers: int) -> list[list[int]]:
    """For which bytes, rounds and bytes of others a rank waits in a gather of 20,000 bytes from each."""
    noted = Noted()
    Connection(num_workers, noted, Ledger()).gather(torch.zeros(20_000, dtype=torch.uint8))
    return [[each.bytes, each.rounds, each.awaited] for each in noted.traffic]


def slow_gather(rank: int, num_workers: int) -> dict[str, Any]:
    """What a gather over a slow link comes to, and sends, whose timeout is shorter than the last rank's vector takes.

    The last rank's has 6 pieces and a bit, at half a second each, and those of the others fewer.
    """
    dist.barrier()  # together, since the group's short timeout holds for its setup too
    connection = Connection(num_workers, build(EmulateLink(mbps=16)), Ledger())
    connection.group = dist.new_group(timeout=timedelta(seconds=2))
    vectors = [_numbers(each, PIECE_BYTES * size // 8 + 3) for each, size in enumerate((1, 1, 6)[:num_workers])]
    gathered = connection.gather(vectors[rank])
    are_equal = [torch.equal(*pair) for pair in zip(gathered, vectors, strict=rank == 0)]
    return {"are_equal": are_equal, "sent": connection.ledger.take(), "bytes": vectors[rank].nbytes}


def _numbers(seed: int, count: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
