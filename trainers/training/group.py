"""All ranks of a training run as one object: what it can be asked, and how calls to its workers end.

What crosses to the ranks and back is JSON-compatible.
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
from trainers.segment import Direction, Evaluation, Segment, SegmentResult, Written
from trainers.training import landscape
from trainers.training.call_results import Outcome, WorkerFailed, WorkerLost, judge, patience_s
from trainers.training.checkpoint import Shard, commit_manifest
from trainers.training.landscape import NUM_BATCHES, Landscape
from trainers.training.segment_results import bytes_by_rank, merge
from trainers.workload import WorkloadError

_HOW_TO_WAIT_LONGER = "`workers.reply_timeout_s` allows more, in an exchange `workers.timeout_s`"
_HOW_TO_START_LONGER = "it starts, imports, loads data, makes the model: `workers.start_timeout_s` allows more"


@dataclass(frozen=True)
class Recovery:
    """The time and bytes that a group has spent on lost workers so far."""

    repairs: int = 0
    seconds: float = 0.0  # from the start of a call that was lost to the start of its repetition
    bytes: int = 0  # sent by the busiest worker in calls that were lost, and in those replayed
    absences: Mapping[int, int] = field(default_factory=dict)  # averages that each rank has missed, if it has any


class Group(ABC):
    """The ranks of one training run. Subclasses implement `call` and `close`, and set the attributes."""

    config: ReplicaConfig
    num_workers: int
    backend: str  # gloo | nccl
    device: str  # of rank 0: cpu | cuda:0 | ...
    shapes: Sequence[tuple[int, ...]]  # of the trained parameters
    nodes: Nodes  # the ranks on each
    metrics: Mapping[str, Direction] = {}  # the workload's own
    fingerprint: str = ""  # tells the training task from others
    matrices: tuple[int, float, bool] | None = None  # that are trained, as the model begins, as `Replica` has them
    has_batch_norm: bool = False  # layers that keep running statistics as they train
    recovery = Recovery()  # a group that repairs nothing has spent nothing

    @property
    def num_elements(self) -> int:
        """Entries of the gradient."""
        return sum(map(math.prod, self.shapes))

    @abstractmethod
    def call(self, method: str, *args: Any, timeout_s: float | None = None) -> list[Any]:
        """Have every rank answer the call (see `Rank`), and return the answers by rank.

        `timeout_s` is the configuration's `reply_timeout_s` unless given.

        Raises WorkerLost if a rank dies, loses its peers, or needs more than `timeout_s`; WorkloadError or WorkerFailed
        if its own code raises. After either the ranks' states are undefined.
        """

    @abstractmethod
    def absorb(self, others: Sequence["Group"]) -> None:
        """Take over the ranks of `others`, groups of this kind and configuration, as further ranks of this one.

        All are then in the state before the first step, and `others` are empty. Slots are lost. Raises WorkerLost if a
        rank is lost meanwhile: no group is of use then.
        """

    @abstractmethod
    def rebuild(self, config: ReplicaConfig) -> None:
        """Have all ranks be of another configuration of the same workload, in the state before the first step.

        Processes and loaded data stay; slots are lost. Raises as `absorb` does, or WorkloadError.
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
        """Have each of the first ranks take the steps of one of `segments` by itself; returns their results in order.

        See `Replica.run_alone`: the ranks' states differ afterwards. Raises ValueError for more segments than ranks.
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
        """Free the memory of the copy in `slot`; lost workers are not brought back to it any more."""
        self.call("forget", slot)

    def evaluate(self) -> Evaluation:
        """Evaluate on the validation set."""
        answers = [Evaluation.model_validate(answer) for answer in self.call("evaluate")]
        return answers[0].model_copy(update=bytes_by_rank(answers))

    def landscape(self) -> Landscape | None:
        """Return what the batches of all ranks tell of a new model's loss; None: some rank cannot tell.

        See `Replica.landscape`: the model's buffers differ afterwards.
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
        self.save(url)  # groups that cannot train meanwhile

    def saved(self, url: str, within_s: float = 0.0) -> bool:
        """Return whether the checkpoint that `begin_save` began at `url` is complete, within so many seconds."""
        return True

    def load(self, url: str) -> None:
        """Go back to the checkpoint in the folder `url`."""
        self.call("load", url)

    def export(self, url: str) -> Written:
        """Write the evaluated weights as the safetensors file `url`."""
        answers = [Written.model_validate(answer) for answer in self.call("export", url)]
        sha256 = next(each.sha256 for each in answers if each.sha256 is not None)
        return Written(sha256=sha256, **bytes_by_rank(answers))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class WorkerGroup(Group):
    """Ranks that are workers: asks all, judges what comes back, replaces those that are lost.

    Subclasses say how to start, ask, hear and kill a worker, and call `_open` when they are ready to.
    """

    def call(self, method: str, *args: Any, timeout_s: float | None = None) -> list[Any]:
        return self.call_on(range(self.num_workers), method, *args, timeout_s=timeout_s)

    def replace(self, ranks: Collection[int]) -> None:
        """Put fresh workers, in the state before the first step, in place of `ranks`, and connect all anew.

        The others keep their processes and what is in their memory. Raises WorkerLost if a worker is lost meanwhile.
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
        self.config = config  # of those that are started later, too
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
        """Wait until `ranks`, which have been told to start, have a place; raises WorkloadError for one that is unfit.

        Processes of this machine always have one.
        """

    def _connect(self, ranks: Collection[int]) -> None:
        """Have `ranks` build their replicas, and then all ranks meet."""
        # All are ready before any waits for its peers, which it does no longer than for a collective.
        self.agree(self.call_on(ranks, "build", timeout_s=self.config.start_timeout_s))
        self.meet(range(self.num_workers))

    def meet(self, ranks: Sequence[int]) -> None:
        """Connect `ranks`, in ascending order, with each other and nobody else; raises WorkerLost."""
        met = self.call_on(ranks, "connect", self._rendezvous(ranks[0]), list(ranks))
        self.backend, self.device, shapes, nodes = met[0]
        self.shapes = tuple(map(tuple, shapes))
        self.nodes = tuple(map(tuple, nodes))

    def agree(self, built: Sequence[dict[str, Any]]) -> None:
        """Note what the ranks have built; raises WorkloadError unless it is the same on all, also on later ones."""
        if not self.fingerprint:
            self.fingerprint, self.metrics = built[0]["fingerprint"], built[0]["metrics"]
            self.matrices, self.has_batch_norm = built[0]["matrices"], built[0]["has_batch_norm"]
        if any(each["fingerprint"] != self.fingerprint for each in built):
            raise WorkloadError(
                "the workers built different models or data from one seed: draw random numbers from the global "
                "generators of torch, NumPy and Python only, and read the same files everywhere"
            )

    def call_on(self, ranks: Collection[int], method: str, *args: Any, timeout_s: float | None = None) -> list[Any]:
        """Have `ranks` answer the call, and return their answers in this order; raises as `call` does."""
        for rank in ranks:
            self.ask(rank, method, args)
        return self.answers(ranks, method, timeout_s=timeout_s)

    def answers(self, ranks: Collection[int], method: str, *, timeout_s: float | None = None) -> list[Any]:
        """Return the answers of `ranks`, which have been asked; `method` is for messages. Raises as `call` does."""
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
        """Take the workers of `other`, which may be this group, as ranks from `first` on; `num_workers` follows."""

    @abstractmethod
    def start(self, rank: int) -> None:
        """Start a worker for `rank`; returns before it is ready."""

    @abstractmethod
    def ask(self, rank: int, method: str, args: Sequence[Any]) -> None:
        """Pass a call on; that the worker is dead is heard, not raised."""

    @abstractmethod
    def hear(self, ranks: Collection[int], timeout_s: float) -> dict[int, Outcome]:
        """Return what came of the call on those of `ranks` that are first to say so; none within `timeout_s`: {}."""

    @abstractmethod
    def kill(self, rank: int) -> None:
        """End a worker that is dead or does not listen any more, for good."""

    @abstractmethod
    def _rendezvous(self, host: int) -> str:
        """Return an address (a torch URL) where nobody has met yet, on the node of rank `host`."""
