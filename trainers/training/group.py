"""A training run's ranks as one object: the calls that it offers, and how calls to its workers end.

Arguments and answers are JSON-compatible.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from trainers import overload
from trainers.exchange.topology import Nodes
from trainers.methods.replica_config import ReplicaConfig
from trainers.segment import Evaluation, Segment, SegmentResult, Written
from trainers.training import landscape, likeness
from trainers.training.call_results import Built, Outcome, WorkerFailed, WorkerLost, judge, patience_s
from trainers.training.checkpoint import Shard, commit_manifest
from trainers.training.landscape import NUM_BATCHES, Landscape
from trainers.training.segment_results import bytes_by_rank, merge
from trainers.workload import EvaluatedSet, WorkloadError

_HOW_TO_WAIT_LONGER = "`workers.reply_timeout_s` allows more, in an exchange `workers.timeout_s`"
_HOW_TO_START_LONGER = "it starts, imports, loads data, makes the model: `workers.start_timeout_s` allows more"


@dataclass(frozen=True)
class Recovery:
    """The time and bytes that a group has spent on lost workers so far."""

    repairs: int = 0
    seconds: float = 0.0  # from the start of each failed call to the start of its repetition
    bytes: int = 0  # sent by the busiest worker in failed and in replayed calls
    absences: Mapping[int, int] = field(default_factory=dict)  # by rank: the averages that it has missed


class Group(ABC):
    """The ranks of one training run. Subclasses implement `call` and `close`, and set the attributes."""

    config: ReplicaConfig
    num_workers: int
    backend: str  # gloo | nccl
    device: str  # of rank 0: cpu | cuda:0 | ...
    shapes: Sequence[tuple[int, ...]]  # of the trained parameters
    nodes: Nodes  # the ranks on each node
    built = Built()  # by each rank, alike
    recovery = Recovery()  # a group that repairs nothing has spent nothing

    @property
    def num_elements(self) -> int:
        """The number of entries of the gradient."""
        return sum(map(math.prod, self.shapes))

    @abstractmethod
    def call(self, method: str, *args: Any, timeout_s: float | None = None) -> list[Any]:
        """Send the call to every rank (see `Rank`), and return the answers by rank.

        `timeout_s` defaults to the configuration's `reply_timeout_s`.

        Raises WorkerLost if a rank dies, loses its peers, or needs more than `timeout_s`; WorkloadError or WorkerFailed
        if its own code raises. After any of these, the ranks' states are undefined.
        """

    @abstractmethod
    def absorb(self, others: Sequence["Group"]) -> None:
        """Add the ranks of `others`, groups of the same kind and configuration, to this group.

        All ranks then return to the state before the first step, slots are lost, and `others` are empty. Raises
        WorkerLost if a rank is lost meanwhile; none of the groups is usable then.
        """

    @abstractmethod
    def rebuild(self, config: ReplicaConfig) -> None:
        """Switch all ranks to another configuration of the same workload, in the state before the first step.

        Processes and loaded data are kept; slots are lost. Raises as `absorb` does, or WorkloadError.
        """

    @abstractmethod
    def close(self) -> None:
        """End all workers. May be called twice."""

    def run(self, segment: Segment) -> SegmentResult:
        """Take the segment's steps on all ranks."""
        timeout_s = self.config.reply_timeout_s + segment.num_steps * self.config.collective_timeout_s
        answers = self.call("run", segment.model_dump(mode="json"), timeout_s=timeout_s)
        return merge([SegmentResult.model_validate(answer) for answer in answers], leaves_out=self._leaves_out)

    @property
    def _leaves_out(self) -> bool:
        """True where averages leave out a rank that is not finite."""
        return getattr(self.config.sync, "max_z", None) is not None

    def run_alone(self, segments: Sequence[Segment]) -> list[SegmentResult]:
        """Run one of `segments` on each of the first ranks, which train by themselves. Returns the results in order.

        The ranks' states differ afterwards (see `Replica.run_alone`). Raises ValueError for more segments than ranks.
        """
        if len(segments) > self.num_workers:
            raise ValueError(f"`segments` must be at most {self.num_workers}, one for each rank, got {len(segments)}")
        longest = max(segment.num_steps for segment in segments)
        timeout_s = self.config.reply_timeout_s + longest * self.config.collective_timeout_s
        told = [segment.model_dump(mode="json") for segment in segments]
        answers = self.call("run_alone", told, timeout_s=timeout_s)
        return [SegmentResult.model_validate(answer) for answer in answers[: len(segments)]]

    def snapshot(self, slot: str) -> None:
        """Keep a copy of the whole state in the ranks' memory under the name `slot`."""
        self.call("snapshot", slot)

    def restore(self, slot: str) -> None:
        """Go back to the copy in `slot`."""
        self.call("restore", slot)

    def forget(self, slot: str) -> None:
        """Free the memory of the copy in `slot`. Replaced workers no longer get it."""
        self.call("forget", slot)

    def evaluate(self, *, averaged: bool = False, on: EvaluatedSet = "validation") -> Evaluation:
        """Evaluate on a data set: the weights, or the average of them (see `WeightAverage`)."""
        longer = max(1.0, self.built.num_test / self.built.num_validation) if on == "test" else 1.0
        timeout_s = self.config.reply_timeout_s * longer  # which is that of the validation set
        told = self.call("evaluate", averaged, on, timeout_s=timeout_s)
        answers = [Evaluation.model_validate(answer) for answer in told]
        return answers[0].model_copy(update=bytes_by_rank(answers))

    def landscape(self) -> Landscape | None:
        """Measure a new model's loss landscape on batches of all ranks; None: it cannot be measured on some rank.

        Changes the model's buffers (see `Replica.landscape`).
        """
        timeout_s = self.config.reply_timeout_s + 2 * NUM_BATCHES * self.config.collective_timeout_s  # as so many steps
        answers = self.call("landscape", timeout_s=timeout_s)
        return None if None in answers else landscape.together([Landscape(*answer) for answer in answers])

    def save(self, url: str) -> None:
        """Write a checkpoint to the folder `url`; it is complete when this returns."""
        answers = self.call("save", url)
        commit_manifest(url, [Shard.model_validate(shard) for answer in answers for shard in answer], self.nodes)

    def begin_save(self, url: str) -> None:
        """Begin to write a checkpoint of the present state to the folder `url`; it is complete once `saved` says so."""
        self.save(url)  # the default, for groups that cannot train meanwhile

    def saved(self, url: str, within_s: float = 0.0) -> bool:
        """Wait at most `within_s` seconds, and return whether the checkpoint begun at `url` is complete."""
        return True

    def load(self, url: str) -> None:
        """Go back to the checkpoint in the folder `url`."""
        self.call("load", url)

    def export(self, url: str, *, averaged: bool = False) -> Written:
        """Write what `evaluate` looks at as the safetensors file `url`."""
        answers = [Written.model_validate(answer) for answer in self.call("export", url, averaged)]
        sha256 = next(each.sha256 for each in answers if each.sha256 is not None)
        return Written(sha256=sha256, **bytes_by_rank(answers))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class WorkerGroup(Group):
    """A group whose ranks are worker processes: it calls them, judges their answers, and can replace lost ones.

    Subclasses implement how to start, ask, hear and kill a worker, and call `_open` when they are ready.
    """

    def call(self, method: str, *args: Any, timeout_s: float | None = None) -> list[Any]:
        return self.call_on(range(self.num_workers), method, *args, timeout_s=timeout_s)

    def replace(self, ranks: Collection[int]) -> None:
        """Replace `ranks` by new workers, in the state before the first step, and reconnect all ranks.

        The other ranks keep their processes and their memory. Raises WorkerLost if a worker is lost meanwhile.
        """
        for rank in ranks:
            self.kill(rank)
        self._start_and_connect(ranks)

    def absorb(self, others: Sequence[Group]) -> None:
        groups: list[Group] = [self, *others]
        total, first = sum(group.num_workers for group in groups), 0
        for group in groups:
            assert isinstance(group, WorkerGroup)
            group.call("move", first, total)
            self._adopt(group, first)
            first += group.num_workers
        self.num_workers = total
        self._connect(range(total))

    def rebuild(self, config: ReplicaConfig) -> None:
        self.config = config  # workers that start later use it too
        self.call("configure", config.model_dump(mode="json"))
        self._connect(range(self.num_workers))

    def _open(self) -> None:
        """Start and connect all ranks; end them if that fails."""
        try:
            self._start_and_connect(range(self.num_workers))
        except (WorkerLost, WorkerFailed, WorkloadError):
            self.close()
            raise

    def _start_and_connect(self, ranks: Collection[int]) -> None:
        for rank in ranks:
            self.start(rank)
        self.await_places(ranks)
        self._connect(ranks)

    def await_places(self, ranks: Collection[int]) -> None:
        """Wait until starting `ranks` have been placed on machines. Raises WorkloadError if a place is unfit.

        Processes of this machine always have a place.
        """

    def _connect(self, ranks: Collection[int]) -> None:
        """Let `ranks` build their replicas, then connect all ranks."""
        # All must be ready before any waits for its peers: that wait is no longer than a collective's.
        self.agree(self.call_on(ranks, "build", timeout_s=self.config.start_timeout_s))
        self.meet(range(self.num_workers))

    def meet(self, ranks: Sequence[int]) -> None:
        """Connect `ranks`, given in ascending order, with each other and no one else. Raises WorkerLost."""
        met = self.call_on(ranks, "connect", self._rendezvous(ranks[0]), list(ranks))
        self.backend, self.device, shapes, nodes = met[0]
        self.shapes = tuple(map(tuple, shapes))
        self.nodes = tuple(map(tuple, nodes))

    def agree(self, answers: Sequence[Mapping[str, Any]]) -> None:
        """Record what the ranks built. Raises WorkloadError if any, also a later one, built another model or data."""
        built = [Built(**each) for each in answers]
        if not self.built.fingerprint:
            self.built = built[0]
        likeness.require_alike("the workers", [self.built, *built])

    def call_on(self, ranks: Collection[int], method: str, *args: Any, timeout_s: float | None = None) -> list[Any]:
        """Send the call to `ranks`, and return their answers in this order. Raises as `call` does."""
        for rank in ranks:
            self.ask(rank, method, args)
        return self.answers(ranks, method, timeout_s=timeout_s)

    def answers(self, ranks: Collection[int], method: str, *, timeout_s: float | None = None) -> list[Any]:
        """Wait for the answers of `ranks` to a call already sent; messages name `method`. Raises as `call` does."""
        timeout_s = self.config.reply_timeout_s if timeout_s is None else timeout_s
        started = time.monotonic()
        deadline, failed_at, outcomes = started + timeout_s, math.inf, dict[int, Outcome]()
        while missing := [rank for rank in ranks if rank not in outcomes]:
            heard = self.hear(missing, max(0.0, deadline - time.monotonic()))
            if not heard:
                waited_s = time.monotonic() - started
                how = _HOW_TO_START_LONGER if method == "build" else _HOW_TO_WAIT_LONGER
                silence = Outcome("silence", f"no answer to `{method}` within {waited_s:.3g} s ({how})")
                heard = dict.fromkeys(missing, silence)
            outcomes |= heard
            patience = patience_s(outcomes.values(), collective_timeout_s=self.config.collective_timeout_s)
            if patience is not None:
                failed_at = min(failed_at, time.monotonic())
                deadline = min(started + timeout_s, failed_at + patience)
        return judge(outcomes, overload.here())

    @abstractmethod
    def _adopt(self, other: "WorkerGroup", first: int) -> None:
        """Take the workers of `other`, which may be this group, as ranks from `first` on.

        The caller sets `num_workers` afterwards.
        """

    @abstractmethod
    def start(self, rank: int) -> None:
        """Start a worker for `rank`; returns before it is ready."""

    @abstractmethod
    def ask(self, rank: int, method: str, args: Sequence[Any]) -> None:
        """Send a call to a worker. If the worker is dead, `hear` reports it; nothing is raised here."""

    @abstractmethod
    def hear(self, ranks: Collection[int], timeout_s: float) -> dict[int, Outcome]:
        """Return the results of the first of `ranks` to answer; {} if none answers within `timeout_s`."""

    @abstractmethod
    def kill(self, rank: int) -> None:
        """Kill a worker that is dead or no longer listens."""

    @abstractmethod
    def _rendezvous(self, host: int) -> str:
        """Return a rendezvous address (a torch URL) not used before, on the node of rank `host`."""
