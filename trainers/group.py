"""All ranks of a training run as one object; `ProcessGroup` runs them as processes of this machine.

What crosses to the ranks and back is JSON-compatible.
"""

import multiprocessing
import os
import tempfile
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from trainers.checkpoint import Shard, commit_manifest
from trainers.config import ReplicaConfig
from trainers.replica import Backend, Replica
from trainers.segment import Evaluation, Segment, SegmentResult

#: Longest that a worker may take for anything but steps: an evaluation, a checkpoint.
REPLY_S = 120.0
#: Longest that a worker may take to load its libraries and data, and to find the others.
START_S = 120.0
#: After a rank's error: how long to look for another one that died, and so caused it.
BLAME_S = 1.0
#: Longest that a worker may take to leave by itself.
LEAVE_S = 2.0


class WorkerLost(Exception):
    """A worker died, failed or fell silent. Its group is closed; start another, and load a checkpoint."""

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(rank, why)
        self.rank, self.why = rank, why

    def __str__(self) -> str:
        return f"worker {self.rank} is lost: {self.why}"


class Group(ABC):
    """The ranks of one training run. Subclasses implement `call` and `close`, and set the attributes."""

    config: ReplicaConfig
    num_workers: int
    backend: str  # gloo | nccl
    device: str  # of rank 0: cpu | cuda:0 | ...

    @abstractmethod
    def call(self, method: str, *args: Any, timeout_s: float = REPLY_S) -> list[Any]:
        """Have every rank `answer` the call, and return the answers by rank.

        Raises WorkerLost, and closes the group, if a rank dies, fails, or needs more than `timeout_s`.
        """

    @abstractmethod
    def close(self) -> None:
        """End all workers. May be called twice."""

    def run(self, segment: Segment) -> SegmentResult:
        """Take the segment's steps on all ranks."""
        timeout_s = REPLY_S + segment.num_steps * self.config.collective_timeout_s
        answers = self.call("run", segment.model_dump(mode="json"), timeout_s=timeout_s)
        return merge([SegmentResult.model_validate(answer) for answer in answers])

    def snapshot(self, slot: str) -> None:
        """Keep a copy of the whole state in the ranks' memory under the name `slot`."""
        self.call("snapshot", slot)

    def restore(self, slot: str) -> None:
        """Go back to the copy in `slot`."""
        self.call("restore", slot)

    def evaluate(self) -> Evaluation:
        """Evaluate on the validation set."""
        answers = [Evaluation.model_validate(answer) for answer in self.call("evaluate")]
        bytes_sent = tuple(answer.bytes_sent[0] for answer in answers)
        return answers[0].model_copy(update={"bytes_sent": bytes_sent})

    def save(self, url: str) -> None:
        """Write a checkpoint to the folder `url`; it is complete when this returns."""
        answers = self.call("save", url)
        commit_manifest(url, [Shard.model_validate(shard) for answer in answers for shard in answer])

    def load(self, url: str) -> None:
        """Go back to the checkpoint in the folder `url`."""
        self.call("load", url)

    def export(self, url: str) -> str:
        """Write the evaluated weights as the safetensors file `url`, and return it."""
        self.call("export", url)
        return url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def answer(replica: Replica, method: str, args: Sequence[Any]) -> Any:
    """Answer, on a rank, what `Group.call` asked there: JSON-compatible in and out."""
    match method:
        case "run":
            return replica.run(Segment.model_validate(args[0])).model_dump(mode="json")
        case "evaluate":
            return replica.evaluate().model_dump(mode="json")
        case "save":
            return [shard.model_dump() for shard in replica.save(args[0])]
        case "snapshot" | "restore" | "load" | "export":
            return getattr(replica, method)(*args)
        case _:
            raise ValueError(f"`method` must be one that a group asks for, got {method!r}")


def merge(results: list[SegmentResult]) -> SegmentResult:
    """Return the ranks' views of one segment as one: a step lasts as long as its slowest rank."""
    return results[0].model_copy(
        update={
            "step_seconds": tuple(map(max, zip(*(result.step_seconds for result in results), strict=True))),
            "bytes_sent": tuple(result.bytes_sent[0] for result in results),
        }
    )


class ProcessGroup(Group):
    """Spawns `num_workers` processes, and ends them when it is closed, or with the process that made it.

    Raises WorkerLost if one of them does not start.
    """

    def __init__(
        self, config: ReplicaConfig, num_workers: int, *, device: str = "auto", backend: Backend = "auto"
    ) -> None:
        self.config, self.num_workers = config, num_workers
        # The ranks find each other in a file: no port that somebody else could take first.
        self._folder = tempfile.TemporaryDirectory(prefix="wiretune-")
        init_method = f"file://{Path(self._folder.name) / 'rendezvous'}"
        launch = (config.model_dump_json(), num_workers, device, backend, init_method)
        self._workers = [_Worker(rank, launch) for rank in range(num_workers)]
        self.backend, self.device = self._collect(START_S)[0]

    @property
    def pids(self) -> list[int]:
        """The workers' process ids, by rank."""
        return [worker.pid for worker in self._workers]

    def call(self, method: str, *args: Any, timeout_s: float = REPLY_S) -> list[Any]:
        for worker in self._workers:
            try:
                worker.connection.send((method, args))
            except OSError:
                self._give_up(worker.rank, worker.cause_of_death())
        return self._collect(timeout_s)

    def close(self) -> None:
        for worker in self._workers:
            worker.connection.close()  # which tells it to leave
        for worker in self._workers:
            worker.end()
        self._workers = []
        self._folder.cleanup()

    def _collect(self, timeout_s: float) -> list[Any]:
        """Return one answer per rank."""
        deadline = time.monotonic() + timeout_s
        answers: dict[int, Any] = {}
        while len(answers) < self.num_workers:
            missing = [worker for worker in self._workers if worker.rank not in answers]
            ready = wait([worker.connection for worker in missing], max(0.0, deadline - time.monotonic()))
            if not ready:
                self._give_up(missing[0].rank, f"no answer within {timeout_s:g} s")
            for worker in missing:
                if worker.connection in ready:
                    answers[worker.rank] = self._receive(worker)
        return [answers[rank] for rank in range(self.num_workers)]

    def _receive(self, worker: "_Worker") -> Any:
        kind, content = worker.receive()
        if kind == "answer":
            return content
        culprit = None if kind == "death" else self._find_dead(worker)
        if culprit is not None:
            self._give_up(culprit.rank, culprit.cause_of_death())
        self._give_up(worker.rank, content)

    def _find_dead(self, failed: "_Worker") -> "_Worker | None":
        """Return a worker that died without a word: the error that another one reports follows from that."""
        deadline = time.monotonic() + BLAME_S
        suspects = [worker for worker in self._workers if worker is not failed]
        while suspects and (left := deadline - time.monotonic()) > 0:
            gone = wait([worker.sentinel for worker in suspects], left)
            for worker in [worker for worker in suspects if worker.sentinel in gone]:
                suspects.remove(worker)
                if worker.receive()[0] == "death":
                    return worker
        return None

    def _give_up(self, rank: int, why: str) -> NoReturn:
        self.close()
        raise WorkerLost(rank, why)


class _Worker:
    """The parent's end of one process."""

    def __init__(self, rank: int, launch: tuple[str, int, str, Backend, str]) -> None:
        context = multiprocessing.get_context("spawn")
        self.rank = rank
        self.connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, rank, launch), daemon=True, name=f"wiretune-rank-{rank}"
        )
        self._process.start()
        theirs.close()  # so that its death ends our receive
        self.pid, self.sentinel = self._process.pid or 0, self._process.sentinel

    def receive(self) -> tuple[str, Any]:
        """Return what it says: ("answer", value), ("error", traceback) or, if it is gone, ("death", why)."""
        try:
            kind, content = self.connection.recv()
        except (EOFError, OSError):
            return "death", self.cause_of_death()
        return kind, content

    def cause_of_death(self) -> str:
        self._process.join(LEAVE_S)
        return f"its process {self.pid} ended with exit code {self._process.exitcode}"

    def end(self) -> None:
        self._process.join(LEAVE_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._process.close()


def _serve(calls: Connection, rank: int, launch: tuple[str, int, str, Backend, str]) -> None:
    """Be one rank: answer calls until the other end closes."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    config, num_workers, device, backend, init_method = launch
    try:
        replica = Replica(ReplicaConfig.model_validate_json(config), rank, num_workers, device=device)
        replica.connect(init_method, backend=backend)
        calls.send(("answer", (replica.backend, str(replica.device))))
        while True:
            method, args = calls.recv()
            calls.send(("answer", answer(replica, method, args)))
    except EOFError:
        return  # the group was closed
    except Exception:  # the border of the process: the other end raises it as WorkerLost
        calls.send(("error", traceback.format_exc()))


def _end_with_parent() -> None:
    """End this process, whatever it is doing, when the one that spawned it has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
