"""A group of ranks as Ray actors, one in each bundle of the trial's own placement group."""

import fcntl
import os
import socket
import struct
from typing import Any, Self

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from service.spec import Workers
from trainers.config import ReplicaConfig
from trainers.group import Group, WorkerLost
from trainers.replica import Replica

START_TIMEOUT_S = 120.0


@ray.remote(max_restarts=0)  # a restarted rank has lost its state and its peers
class RankActor:
    """One rank. Values cross as plain data; tensors stay where they are."""

    def __init__(self, config: dict[str, Any], rank: int, world: int) -> None:
        self.address = ray.util.get_node_ip_address()
        if interface := interface_of(self.address):
            # gloo resolves the host's name otherwise, to an address that other nodes may not reach
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
        self.replica = Replica(ReplicaConfig.model_validate(config), rank, world)

    def rendezvous(self) -> str:
        """Return an address on this node where the group can meet."""
        with socket.socket() as probe:
            probe.bind((self.address, 0))
            return f"tcp://{self.address}:{probe.getsockname()[1]}"

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self.replica, method)(*args)


def interface_of(address: str) -> str | None:
    """Return the network interface that owns `address` (Linux), or None."""
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                packed = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
            except OSError:
                continue  # the interface has no IPv4 address
            if socket.inet_ntoa(packed[20:24]) == address:
                return name
    return None
