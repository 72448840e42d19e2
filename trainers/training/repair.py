"""A fault-tolerant group: it replaces lost workers, restores the state of all workers, and repeats the call.

A segment depends only on the state that it starts from, so the result is bit for bit that of a run without failures.
While nothing fails, this costs no more than a list of calls.
"""

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainers.methods.replica_config import ReplicaConfig
from trainers.training.call_results import WorkerLost, in_place_of_others
from trainers.training.checkpoint import Shard, commit_manifest
from trainers.training.group import Group, Recovery, WorkerGroup

#: Repairs in a row, without a completed call in between, before the group raises WorkerLost.
MAX_REPAIRS = 3

log = logging.getLogger("wiretune.repair")


@dataclass(frozen=True)
class RankCall:
    """A call to all ranks, as in `Group.call`."""

    method: str
    args: tuple[Any, ...] = ()
    timeout_s: float | None = None


#: Calls that lead from any state to a certain one.
Trail = tuple[RankCall, ...]


class History:
    """The calls that led to the ranks' present state, and to each slot."""

    def __init__(self) -> None:
        self._now: Trail = (RankCall("reset"),)
        self._slots: dict[str, Trail] = {}

    def record(self, call: RankCall) -> None:
        """Record a call that all ranks have completed. Calls that change no state are not kept."""
        match call.method:
            case "run" | "run_alone" | "begin_save":
                self._now += (call,)
            case "load":
                self._now = (call,)
            case "snapshot":
                self._slots[call.args[0]] = self._now
            case "restore":
                self._now = self._slots[call.args[0]]
            case "forget":
                self._slots.pop(call.args[0], None)

    def shorten(self, begun: RankCall, loading: RankCall) -> None:
        """Replace all calls up to `begun` by `loading`, which leads to the state that `begun` was called in."""

        def shortened(trail: Trail) -> Trail:
            return (loading, *trail[trail.index(begun) + 1 :]) if begun in trail else trail

        self._now = shortened(self._now)
        self._slots = {slot: shortened(trail) for slot, trail in self._slots.items()}

    def needs(self, url: str) -> bool:
        """Return whether the state, or a slot, was reached through the checkpoint at `url`."""
        return any(RankCall("load", (url,)) in trail for trail in (self._now, *self._slots.values()))

    def way_here(self) -> Iterable[RankCall]:
        """Yield the calls that rebuild every slot and then the present state, on ranks in any state.

        Slots are given up first: a reset builds the state before the first step beside the live one, and needs room.
        """
        yield from (RankCall("forget", (slot,)) for slot in self._slots)
        here: Trail = ()
        snapshots = [(trail, RankCall("snapshot", (slot,))) for slot, trail in self._slots.items()]
        for trail, snapshot in [*snapshots, (self._now, None)]:
            is_on_the_way = trail[: len(here)] == here
            yield from trail[len(here) :] if is_on_the_way else trail
            if snapshot:
                yield snapshot
            here = trail


class RepairingGroup(Group):
    """Wraps `group`, and owns it. Raises WorkerLost only if all workers are lost at once, or repairs keep failing.

    Like `ElasticGroup`, raises Unfit if a replacement worker cannot train on its machine.
    """

    def __init__(self, group: WorkerGroup) -> None:
        self._group = group
        self.config, self.built, self.shapes = group.config, group.built, group.shapes
        self.backend, self.device = group.backend, group.device
        self.recovery = Recovery()
        self._history = History()
        self._count()

    def _count(self) -> None:
        """Note which workers there are, and where."""
        self.num_workers, self.nodes = self._group.num_workers, self._group.nodes

    def call(self, method: str, *args: Any, timeout_s: float | None = None) -> list[Any]:
        wanted, started = RankCall(method, args, timeout_s), time.monotonic()
        try:
            answers = self._ask(wanted)
        except WorkerLost as lost:
            answers = self._repeat(wanted, lost, started)
        self._history.record(wanted)
        return answers

    def save(self, url: str) -> None:
        if self._history.needs(url):
            raise ValueError(f"`url` must be a new folder, got {url}: lost workers would be rebuilt from what it holds")
        super().save(url)
        self._history.record(RankCall("load", (url,)))  # the checkpoint is complete now, and is the present state

    def begin_save(self, url: str) -> None:
        if self._history.needs(url):
            raise ValueError(f"`url` must be a new folder, got {url}: lost workers would be rebuilt from what it holds")
        self.call("begin_save", url)  # should a worker be lost, it is begun again on the way back here

    def saved(self, url: str, within_s: float = 0.0) -> bool:
        answers = self.call("saved", within_s)
        if None in answers:
            return False
        commit_manifest(url, [Shard.model_validate(shard) for answer in answers for shard in answer], self.nodes)
        self._history.shorten(RankCall("begin_save", (url,)), RankCall("load", (url,)))
        return True

    def absorb(self, others: Sequence[Group]) -> None:
        self._group.absorb([other._group if isinstance(other, RepairingGroup) else other for other in others])
        self._count()
        self._history = History()

    def rebuild(self, config: ReplicaConfig) -> None:
        self._group.rebuild(config)
        self.config = config
        self._count()
        self._history = History()

    def close(self) -> None:
        self._group.close()

    def _ask(self, call: RankCall) -> list[Any]:
        return self._group.call(call.method, *call.args, timeout_s=call.timeout_s)

    def _repeat(self, wanted: RankCall, lost: WorkerLost, started: float) -> list[Any]:
        """Repair the group and repeat `wanted`, the call that failed. It `started` then on the monotonic clock."""
        for _ in range(MAX_REPAIRS):
            if len(lost.ranks) == self.num_workers:
                break  # nobody is left to repair the group around
            try:
                self._repair(wanted, lost)
                repeated = time.monotonic()
                answers = self._ask(wanted)
            except WorkerLost as again:
                lost = again
                continue
            self._charge(seconds=repeated - started)
            return answers
        raise lost

    def _repair(self, wanted: RankCall, lost: WorkerLost) -> None:
        """Replace the lost ranks, and restore on all ranks the state that `wanted` started from."""
        log.warning("%s; in `%s`, which will be repeated", lost, wanted.method)
        self._charge(repairs=1)
        with in_place_of_others():
            self._group.replace(lost.ranks)
        self._count()
        unreported = self._group.call("take_bytes")
        self._charge(num_bytes=_most_bytes([*lost.answers, *({"bytes_sent": [rank]} for rank in unreported)]))
        for call in self._history.way_here():
            self._charge(num_bytes=_most_bytes(self._ask(call)))

    def _charge(self, *, repairs: int = 0, seconds: float = 0.0, num_bytes: int = 0) -> None:
        spent = self.recovery
        self.recovery = replace(
            spent, repairs=spent.repairs + repairs, seconds=spent.seconds + seconds, bytes=spent.bytes + num_bytes
        )


def _most_bytes(answers: Iterable[Any]) -> int:
    """Return the bytes sent by the rank that sent most, from its answer. Most answers report no bytes."""
    reports = [answer for answer in answers if isinstance(answer, dict) and "bytes_sent" in answer]
    return max((sum(report["bytes_sent"][0].values()) for report in reports), default=0)
