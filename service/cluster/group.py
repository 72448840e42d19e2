"""A group of ranks as Ray actors, one in each bundle of the trial's own placement group."""

import fcntl
import os
import socket
import struct
import time
from typing import Any, NoReturn

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from service.spec import Workers
from trainers.config import ReplicaConfig
from trainers.group import REPLY_S, START_S, Group, WorkerLost, answer
from trainers.replica import Replica

#: After a rank's error: how long to look for another one that died, and so caused it.
BLAME_S = 2.0


class RankActor:
    """One rank. Values cross as plain data; tensors stay where they are."""

    def __init__(self, config: dict[str, Any], rank: int, num_workers: int, device: str) -> None:
        self.address = ray.util.get_node_ip_address()
        if interface := interface_of(self.address):
            # gloo resolves the host's name otherwise, to an address that other nodes may not reach
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
        self.replica = Replica(ReplicaConfig.model_validate(config), rank, num_workers, device=device)

    def rendezvous(self) -> str:
        """Return an address on this node where the group can meet."""
        with socket.socket() as probe:
            probe.bind((self.address, 0))
            return f"tcp://{self.address}:{probe.getsockname()[1]}"

    def connect(self, init_method: str, backend: Any) -> tuple[str, str]:
        """Join the others; returns (backend, device)."""
        self.replica.connect(init_method, backend=backend)
        return self.replica.backend, str(self.replica.device)

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        return answer(self.replica, method, args)


class RayGroup(Group):
    """The ranks as actors of the trial that makes it; worker i has the trial's bundle i.

    NCCL where each rank has a GPU of its own, else gloo. Raises WorkerLost if one of them does not start.
    """

    def __init__(self, config: ReplicaConfig, workers: Workers) -> None:
        self.config, self.num_workers = config, workers.count
        self._actors = [self._start(rank, workers) for rank in range(workers.count)]
        backend = "nccl" if workers.gpus >= 1 else "gloo"
        try:
            init_method = ray.get(self._actors[0].rendezvous.remote(), timeout=START_S)
        except RayError as error:
            self._give_up(0, error)
        self.backend, self.device = self._collect("connect", (init_method, backend), START_S)[0]

    def _start(self, rank: int, workers: Workers) -> ActorHandle:
        # max_restarts=0: a restarted rank would have lost its state and its peers.
        return (
            ray.remote(RankActor)
            .options(
                num_cpus=workers.cpus,
                num_gpus=workers.gpus,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    ray.util.get_current_placement_group(), placement_group_bundle_index=rank
                ),
            )
            .remote(self.config.model_dump(mode="json"), rank, workers.count, "auto" if workers.gpus else "cpu")
        )

    def call(self, method: str, *args: Any, timeout_s: float = REPLY_S) -> list[Any]:
        return self._collect("call", (method, args), timeout_s)

    def close(self) -> None:
        for actor in self._actors:
            ray.kill(actor, no_restart=True)
        self._actors = []

    def _collect(self, method: str, args: tuple[Any, ...], timeout_s: float) -> list[Any]:
        ranks = {getattr(actor, method).remote(*args): rank for rank, actor in enumerate(self._actors)}
        deadline = time.monotonic() + timeout_s
        waiting, answers = list(ranks), {}
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                self._give_up(ranks[waiting[0]], f"no answer within {timeout_s:g} s")
            try:
                answers[ranks[ready[0]]] = ray.get(ready[0])
            except RayError as error:
                self._blame(ranks, ranks[ready[0]], error, waiting)
        return [answers[rank] for rank in range(self.num_workers)]

    def _blame(self, ranks: dict[Any, int], failed: int, error: RayError, waiting: list[Any]) -> NoReturn:
        """Give up on the rank that died, if one did: the error that another reports follows from that."""
        if not isinstance(error, RayActorError):
            for reference in ray.wait(waiting, num_returns=len(waiting), timeout=BLAME_S)[0] if waiting else []:
                try:
                    ray.get(reference)
                except RayActorError as death:
                    self._give_up(ranks[reference], death)
                except RayError:
                    continue  # it failed as the first one did
        self._give_up(failed, error)

    def _give_up(self, rank: int, why: RayError | str) -> NoReturn:
        self.close()
        raise WorkerLost(rank, str(why))


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
