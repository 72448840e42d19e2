"""The ranks of a training run as processes of this machine, forked from one that has imported what all need."""

import itertools
import multiprocessing
import os
import tempfile
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from trainers.methods.replica_config import ReplicaConfig
from trainers.training.call_results import Outcome
from trainers.training.group import WorkerGroup
from trainers.training.rank import Rank
from trainers.training.replica import Backend

#: Longest that a worker may take to leave by itself.
LEAVE_S = 2.0
#: Workers are forked from a process that has done nothing but import torch and what else all of them need.
_CONTEXT = multiprocessing.get_context("forkserver")
#: Torch's optimizers import `torch._dynamo`, which takes seconds, in every process that makes one.
_CONTEXT.set_forkserver_preload(["trainers.training.rank", "trainers.exchange.kernels.warm", "torch._dynamo"])


class ProcessGroup(WorkerGroup):
    """Starts `num_workers` processes, and ends them when it is closed, or with the process that made it.

    Raises WorkerLost if one of them does not start, WorkloadError or WorkerFailed if one cannot build its replica.
    """

    def __init__(
        self, config: ReplicaConfig, num_workers: int, *, device: str = "auto", backend: Backend = "auto"
    ) -> None:
        self.config, self.num_workers = config, num_workers
        self._device, self._backend = device, backend
        # The ranks find each other in a file: no port that somebody else could take first.
        self._folder = tempfile.TemporaryDirectory(prefix="wiretune-")
        self._rendezvous_numbers = itertools.count()
        self._workers: dict[int, _Worker] = {}
        self._open()

    @property
    def pids(self) -> list[int]:
        """The workers' process ids, by rank."""
        return [self._workers[rank].pid for rank in range(self.num_workers)]

    def close(self) -> None:
        for worker in self._workers.values():
            worker.connection.close()  # which tells it to leave
        for worker in self._workers.values():
            worker.end()
        self._workers = {}
        self._folder.cleanup()

    def _adopt(self, other: WorkerGroup, first: int) -> None:
        assert isinstance(other, ProcessGroup)
        workers, other._workers = other._workers, {}
        for rank, worker in workers.items():
            worker.rank = first + rank
        self._workers |= {worker.rank: worker for worker in workers.values()}

    def start(self, rank: int) -> None:
        launch = (self.config.model_dump_json(), self._device, self._backend)
        self._workers[rank] = _Worker(rank, self.num_workers, launch)

    def ask(self, rank: int, method: str, args: Sequence[Any]) -> None:
        with suppress(OSError):  # it is dead, as its end of the connection will say
            self._workers[rank].connection.send((method, args))

    def hear(self, ranks: Collection[int], timeout_s: float) -> dict[int, Outcome]:
        workers = [self._workers[rank] for rank in ranks]
        ready = wait([worker.connection for worker in workers], timeout_s)
        return {worker.rank: worker.receive() for worker in workers if worker.connection in ready}

    def kill(self, rank: int) -> None:
        self._workers.pop(rank).kill()

    def _rendezvous(self, host: int) -> str:
        return f"file://{Path(self._folder.name) / f'rendezvous-{next(self._rendezvous_numbers)}'}"


class _Worker:
    """The parent's end of one process."""

    def __init__(self, rank: int, num_workers: int, launch: tuple[str, str, Backend]) -> None:
        self.rank = rank
        self.connection, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(
            target=_serve,
            args=(theirs, rank, num_workers, launch, dict(os.environ)),
            daemon=True,
            name=f"wiretune-rank-{rank}",
        )
        self._process.start()
        theirs.close()  # so that its death ends our receive
        self.pid = self._process.pid or 0

    def receive(self) -> Outcome:
        """Return what came of the last call."""
        try:
            return Outcome(*self.connection.recv())
        except (EOFError, OSError):
            self._process.join(LEAVE_S)
            return Outcome("death", f"its process {self.pid} ended with exit code {self._process.exitcode}")

    def end(self) -> None:
        """Wait a moment for it to leave, then kill it."""
        self._process.join(LEAVE_S)
        self.kill()

    def kill(self) -> None:
        self.connection.close()
        self._process.kill()  # ends a stopped process too
        self._process.join()
        self._process.close()


def _serve(
    calls: Connection, rank: int, num_workers: int, launch: tuple[str, str, Backend], environment: dict[str, str]
) -> None:
    """Be one rank: answer calls until the other end closes."""
    os.environ.clear()  # it is that of the first group's start
    os.environ.update(environment)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # A daemon may have no children, and the loaders of a user's data are: they end with us by themselves.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    config, device, backend = launch
    ours = Rank(ReplicaConfig.model_validate_json(config), rank, num_workers, device=device, backend=backend)
    with suppress(EOFError, OSError):  # the group was closed
        while True:
            calls.send(tuple(ours.answer(*calls.recv())))


def _end_with_parent() -> None:
    """End this process, whatever it is doing, when the one that started it has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
