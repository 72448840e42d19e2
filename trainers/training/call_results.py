"""Judge the results of a call on each rank: return the answers, or find the ranks that are lost. Pure functions."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from trainers.overload import explained
from trainers.segment import Direction
from trainers.workload import NoData, WorkloadError

#: The longest time to look for the rank that caused a peer's error.
BLAME_S = 10.0

Kind = Literal["answer", "peer_lost", "no_data", "refused", "error", "machine_error", "death", "silence"]
#: Failures that a rank causes itself, the gravest first.
_OWN: tuple[Kind, ...] = ("no_data", "refused", "error", "machine_error")


class Outcome(NamedTuple):
    """The result of a call on one rank. `content` is the answer, or a text that says what happened.

    `peer_lost`: a collective failed because another rank or the network did. `refused`: the workload cannot be trained;
    `no_data`: because its data are missing. `error`: the rank's own code raised; `content` has the traceback.
    `machine_error`: the same for an error of the operating system.
    """

    kind: Kind
    content: Any


class Built(NamedTuple):
    """The answer of a rank that has built its replica. JSON-compatible; it crosses processes as a dictionary."""

    fingerprint: str = ""  # identifies the training task
    likeness: Mapping[str, Sequence[float] | str] = {}  # see `trainers.training.likeness`
    metrics: Mapping[str, Direction] = {}  # the workload's own
    matrices: tuple[int, float, bool] | None = None  # of the new model, see `Replica.matrices`
    has_batch_norm: bool = False  # layers that keep running statistics as they train
    num_validation: int = 1  # samples
    num_test: int = 0  # 0: there is no test set


class WorkerLost(Exception):
    """Workers died or fell silent. Without `ranks`, only their connection broke.

    `WorkerGroup.replace(ranks)` repairs the group. `answers` come from the ranks that had finished the call.
    """

    def __init__(self, ranks: Collection[int], why: str, answers: Collection[Any] = ()) -> None:
        super().__init__(tuple(ranks), why)
        self.ranks, self.why, self.answers = tuple(ranks), why, tuple(answers)

    def __str__(self) -> str:
        if not self.ranks:
            return (
                f"the workers have lost touch with each other: {self.why} "
                "(if one of them may need longer than `workers.timeout_s` for a step, raise that)"
            )
        names = ", ".join(map(str, self.ranks))
        return (
            f"worker {names} is lost: {self.why}" if len(self.ranks) == 1 else f"workers {names} are lost: {self.why}"
        )


class WorkerFailed(Exception):
    """A worker's own code raised. It would raise again, so the call is never repeated.

    `is_passing`: the machine failed (a full disk, storage out of reach), so a later attempt may succeed.
    """

    def __init__(self, rank: int, traceback: str, *, is_passing: bool = False) -> None:
        super().__init__(rank, traceback)
        self.rank, self.traceback, self.is_passing = rank, traceback, is_passing

    def __str__(self) -> str:
        return f"worker {self.rank} failed: {self.traceback}"


class Unfit(Exception):
    """A replacement worker cannot train on its machine. On the other machines it could."""


@contextmanager
def in_place_of_others() -> Iterator[None]:
    """Raise Unfit if a replacement worker cannot do what the worker that it replaces could."""
    try:
        yield
    except (WorkloadError, WorkerFailed) as error:
        raise Unfit(str(error)) from error


def judge(outcomes: Mapping[int, Outcome], overload: str | None = None) -> list[Any]:
    """Return the answers in the order of the ranks, or raise the error that explains the missing ones.

    A death explains every other failure, and a rank's own error explains silent peers. If peers were lost, the silent
    ranks are to blame, or the network if no rank is silent. `overload` says that the machine is overloaded, which may
    explain a late answer.
    Raises WorkerLost, WorkloadError or WorkerFailed.
    """
    by_kind: dict[Kind, list[int]] = {}
    for rank in sorted(outcomes):
        by_kind.setdefault(outcomes[rank].kind, []).append(rank)
    answers = [outcomes[rank].content for rank in by_kind.get("answer", [])]
    if len(answers) == len(outcomes):
        return answers
    dead, silent = by_kind.get("death", []), by_kind.get("silence", [])
    own = [rank for kind in _OWN for rank in by_kind.get(kind, [])]
    if own and not dead:
        kind, content = outcomes[own[0]]
        if kind in ("no_data", "refused"):
            raise (NoData if kind == "no_data" else WorkloadError)(content)
        raise WorkerFailed(own[0], content, is_passing=kind == "machine_error")
    lost = dead + silent
    witness = (lost or by_kind["peer_lost"])[0]
    why = outcomes[witness].content
    raise WorkerLost(lost, why if dead else explained(why, overload), answers)


def patience_s(outcomes: Collection[Outcome], *, collective_timeout_s: float) -> float | None:
    """Return how many more seconds to wait for the other ranks; None: nothing has failed.

    Survivors of a death notice it at their next collective, so they get the time of one. A peer that reports a lost
    collective has waited already, so a rank that is still silent is the cause.
    """
    kinds = {outcome.kind for outcome in outcomes}
    if kinds <= {"answer"}:
        return None
    return collective_timeout_s if "death" in kinds else min(BLAME_S, collective_timeout_s)
