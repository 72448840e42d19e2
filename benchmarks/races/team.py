"""The workers of one arm, one per host, and the steps they take together."""

import ctypes
import json
import multiprocessing
import signal
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any

from races import tasks, worker
from races.cables import Cables
from races.network import Sent

#: A dense step of four hosts at 100 Mbit takes 3 s; a block has ten.
REPLY_TIMEOUT_S = 300.0
END_TIMEOUT_S = 10.0
FIRST_PORT = 29_500
PR_SET_PDEATHSIG = 1
#: A worker has the imports and the data of this process, and need not load them again.
FORK = multiprocessing.get_context("fork")


class WorkerFailed(Exception):
    """A worker failed, died or is silent; the message has its last words."""


@dataclass(frozen=True)
class Block:
    """Some steps of all workers."""

    num_steps: int
    seconds: float  # of the slowest
    loss: float  # of the last step, mean over the hosts
    sent: tuple[Sent, ...]  # per host, on the cable
    ledgers: tuple[dict[str, int], ...]  # per host: bytes by purpose, as the product counts them
    density: float | None  # mean share of entries sent, as the product measures it
    saved_bytes: int | None  # that a step keeps for backward, as the product counts them


class Team:
    """The workers of an arm. Starts them at once; `begin` before anything else. As a context, ends them with it.

    Teams on the same network are told apart by their `number`.
    """

    def __init__(self, network: Cables, arm: str | dict[str, Any], *, task: str, seed: int, number: int = 0) -> None:
        tasks.build(task)  # here, so that it is loaded once
        self._network = network
        self._folder = tempfile.TemporaryDirectory(prefix="wt-", dir="/dev/shm")
        launch = {"arm": arm, "task": task, "seed": seed, "num_workers": network.num_hosts}
        launch |= {
            "init_method": f"tcp://{network.address(0)}:{FIRST_PORT + number}",
            "interface": network.interface,
            "link": network.link,
        }
        self._workers: list[ForkProcess] = []
        self._desks: list[Connection] = []
        for rank in range(network.num_hosts):
            ours, theirs = FORK.Pipe()
            process = FORK.Process(target=_on_host, args=(network.host(rank), launch | {"rank": rank}, theirs))
            process.daemon = True  # who ends before the team was entered must not wait for it
            process.start()
            theirs.close()
            self._workers.append(process)
            self._desks.append(ours)

    def __enter__(self) -> "Team":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._workers:
            process.kill()
        for process in self._workers:
            process.join(END_TIMEOUT_S)
        self._folder.cleanup()

    def wait(self) -> None:
        """Wait until all workers have met."""
        for rank in range(len(self._desks)):
            self._reply(rank)

    def begin(self, rate: float) -> None:
        """Warm the workers up, and go to the state before the first step, at this learning rate from now on."""
        self._ask({"do": "begin", "rate": rate})

    def run(self, num_steps: int) -> Block:
        """Take the steps on all hosts."""
        before = self._network.sent()
        replies = self._ask({"do": "run", "num_steps": num_steps})
        after = self._network.sent()
        return Block(
            num_steps=num_steps,
            seconds=max(reply["seconds"] for reply in replies),
            loss=sum(reply["loss"] for reply in replies) / len(replies),
            sent=tuple(late - early for late, early in zip(after, before, strict=True)),
            ledgers=tuple(reply.get("ledger", {}) for reply in replies),
            density=replies[0].get("density"),
            saved_bytes=replies[0].get("saved_bytes"),
        )

    def evaluate(self) -> dict[str, float]:
        """Return the validation losses of the hosts' `own` models (mean over the hosts) and of their `mean` model."""
        self._ask({"do": "publish", "folder": self._folder.name})
        replies = self._ask({"do": "evaluate", "folder": self._folder.name})
        return {which: sum(reply[which] for reply in replies) / len(replies) for which in ("own", "mean")}

    def _ask(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        for desk in self._desks:
            desk.send_bytes(json.dumps(request).encode())
        return [self._reply(rank) for rank in range(len(self._desks))]

    def _reply(self, rank: int) -> dict[str, Any]:
        try:
            if not self._desks[rank].poll(REPLY_TIMEOUT_S):
                raise WorkerFailed(f"the worker of host {rank} has not answered for {REPLY_TIMEOUT_S:.0f} s")
            reply: dict[str, Any] = json.loads(self._desks[rank].recv_bytes())
        except (EOFError, ConnectionError) as error:
            raise WorkerFailed(f"the worker of host {rank} has died; is there enough memory?") from error
        if "failed" in reply:
            raise WorkerFailed(f"the worker of host {rank} failed:\n{reply['failed']}")
        return reply


def enter_host(namespace: str | None) -> None:
    """Move this process, a fork, to the host, if that has a namespace; it lives no longer than who started it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends its workers
    if namespace is None:
        return
    with open(f"/run/netns/{namespace}") as file:
        if libc.setns(file.fileno(), 0):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")


def _on_host(namespace: str | None, launch: dict[str, Any], requests: Connection) -> None:
    """Work on the host."""
    enter_host(namespace)
    worker.work(launch, requests)
