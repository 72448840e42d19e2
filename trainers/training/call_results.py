"""The results of a call on each rank, and the ranks that they show to be lost. Pure."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from trainers.overload import explained
from trainers.workload import NoData, WorkloadError

#: After a peer's error: how long to look for the rank that caused it, at most.
BLAME_S = 10.0

Kind = Literal["answer", "peer_lost", "no_data", "refused", "error", "machine_error", "death", "silence"]
#: What a rank brings on itself, the gravest first.
_OWN: tuple[Kind, ...] = ("no_data", "refused", "error", "machine_error")


class Outcome(NamedTuple):
    """One rank's end of a call. `content` is the answer, or else a text that says what happened.

    `peer_lost`: its collective failed, as another rank or the network did. `refused`: the workload cannot be trained,
    `no_data`: for want of data. `error`: its own, with a traceback. `machine_error`: the same, of the operating system.
    """

    kind: Kind
    content: Any


class WorkerLost(Exception):
    """Workers died or fell silent; without `ranks`, only their connection broke.

    `WorkerGroup.replace(ranks)` makes the group whole. `answers` are those of the ranks that had finished the call.
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
    """A worker's own code raised: a repetition would raise again, so this is never repaired.

    `is_passing`: it was the machine that failed (a full disk, storage out of reach), and later it may not.
    """

    def __init__(self, rank: int, traceback: str, *, is_passing: bool = False) -> None:
        super().__init__(rank, traceback)
        self.rank, self.traceback, self.is_passing = rank, traceback, is_passing

    def __str__(self) -> str:
        return f"worker {self.rank} failed: {self.traceback}"


class Unfit(Exception):
    """A worker cannot train on the machine where it has taken another's place; on others it could."""


@contextmanager
def in_place_of_others() -> Iterator[None]:
    """Raise Unfit for what workers that take the place of others cannot do: those could."""
    try:
        yield
    except (WorkloadError, WorkerFailed) as error:
        raise Unfit(str(error)) from error


def judge(outcomes: Mapping[int, Outcome], overload: str | None = None) -> list[Any]:
    """Return the answers in the order of the ranks, or raise what the missing ones mean.

    A death explains every other failure. An error of a rank's own explains silent peers. Ranks whose peers went away
    prove only that somebody is gone: the silent ones, or nobody, and then it was the network. `overload` of the
    machine, where it is that, explains what came too late.
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
    """Return for how many more seconds to wait for the other ranks; None: nothing has failed.

    Survivors of a death hear of it at their next collective, so they get the time of one. When a peer reports first,
    it has waited already: whoever stays silent now is the cause.
    """
    kinds = {outcome.kind for outcome in outcomes}
    if kinds <= {"answer"}:
        return None
    return collective_timeout_s if "death" in kinds else min(BLAME_S, collective_timeout_s)
