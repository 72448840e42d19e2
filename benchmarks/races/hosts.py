"""The product's ranks on the hosts of a network: what a job's trial trains with, one worker per host."""

import itertools
import json
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from races.network import Network
from races.team import END_TIMEOUT_S, FIRST_PORT, FORK, enter_host

from trainers.methods.replica_config import ReplicaConfig
from trainers.training.call_results import Outcome
from trainers.training.group import WorkerGroup
from trainers.training.rank import Rank

#: A group connects anew after a repair, each time by another port.
PORTS_OF_GROUP = 100


class HostGroup(WorkerGroup):
    """Starts a worker on each host of `network`, and ends them when it is closed.

    They are forks of this process, and have its imports and its data. Groups on the same network are told apart by
    their `number`. Every call first does `wait`, which returns the seconds waited: the training clock leaves them out.
    """

    def __init__(
        self, config: ReplicaConfig, network: Network, *, number: int = 0, wait: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.config, self.num_workers = config, network.num_hosts
        self._network, self._wait = network, wait
        self._ports = itertools.count(FIRST_PORT + PORTS_OF_GROUP * number)
        self._workers: dict[int, Any] = {}
        self._desks: dict[int, Connection] = {}
        self._open()

    def call(self, method: str, *args: Any, timeout_s: float | None = None) -> list[Any]:
        if waited := self._wait():
            self.recovery = replace(self.recovery, seconds=self.recovery.seconds + waited)
        return super().call(method, *args, timeout_s=timeout_s)

    def close(self) -> None:
        for rank in list(self._workers):
            self.kill(rank)

    def _adopt(self, other: WorkerGroup, first: int) -> None:
        raise NotImplementedError("each host has one worker, so there are no spare lanes to take over")

    def start(self, rank: int) -> None:
        self._desks[rank], theirs = FORK.Pipe()
        place = (self._network.host(rank), self._network.interface)
        launch = (self.config.model_dump_json(), rank, self.num_workers)
        self._workers[rank] = FORK.Process(target=_serve, args=(place, launch, theirs))
        self._workers[rank].start()
        theirs.close()

    def ask(self, rank: int, method: str, args: Sequence[Any]) -> None:
        try:
            self._desks[rank].send_bytes(json.dumps([method, list(args)]).encode())
        except OSError:
            return  # it is dead, as its end of the connection will say

    def hear(self, ranks: Collection[int], timeout_s: float) -> dict[int, Outcome]:
        ready = wait([self._desks[rank] for rank in ranks], timeout_s)
        return {rank: self._receive(rank) for rank in ranks if self._desks[rank] in ready}

    def _receive(self, rank: int) -> Outcome:
        try:
            return Outcome(*json.loads(self._desks[rank].recv_bytes()))
        except (EOFError, OSError):
            return Outcome("death", f"the worker of host {rank} has died; is there enough memory?")

    def kill(self, rank: int) -> None:
        self._desks.pop(rank).close()
        worker = self._workers.pop(rank)
        worker.kill()
        worker.join(END_TIMEOUT_S)

    def _rendezvous(self, host: int) -> str:
        return f"tcp://{self._network.address(host)}:{next(self._ports)}"


def _serve(place: tuple[str, str], launch: tuple[str, int, int], calls: Connection) -> None:
    """Be one rank on a host: answer calls until the other end closes."""
    namespace, interface = place
    enter_host(namespace)
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    config, rank, num_workers = launch
    ours = Rank(ReplicaConfig.model_validate_json(config), rank, num_workers, device="cpu", backend="gloo")
    try:
        while True:
            method, args = json.loads(calls.recv_bytes())
            calls.send_bytes(json.dumps(list(ours.answer(method, args))).encode())
    except (EOFError, OSError):  # the group was closed
        return
