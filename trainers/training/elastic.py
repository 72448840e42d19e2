"""A group that continues without workers that are lost or late, and takes them back between two rounds.

It is for local updates. Ranks take a round's steps by themselves, and those that arrive in time average. No rank
restarts or repeats a step because another one failed. A rank that comes back takes over the state of a present one.
No fixed deadline fits two clusters, so deadlines follow the ranks' own arrivals: the grace window of Douillard et al.
(2026), "Decoupled DiLoCo".
"""

import logging
import math
import statistics
import time
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from trainers import overload
from trainers.methods.replica_config import ReplicaConfig
from trainers.overload import explained
from trainers.segment import Segment, SegmentResult
from trainers.training.call_results import Outcome, WorkerLost, in_place_of_others, judge, patience_s
from trainers.training.group import Group, Recovery, WorkerGroup
from trainers.training.replica import BEFORE_AVERAGE
from trainers.training.segment_results import in_a_row, merge, with_average

#: Failed calls in a row before the group raises WorkerLost, and a worker's failed returns in a row. A return has
#: failed if the worker is lost before it has ended a call of a round.
MAX_LOSSES = 5
#: Seconds before a lost worker is replaced while the others train on, by its failed returns in a row.
PAUSES_S = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
#: The longest wait for a state that is handed over. A rank whose peer fails or hangs notices it much earlier, at the
#: next piece of the state.
HANDOVER_S = 86_400.0
#: The number of arrivals to remember, and the number needed before any rank counts as late.
REMEMBERED, KNOWN = 64, 8
#: The shortest grace after the median rank's arrival: a share of the round's time, and seconds.
LEAST_GRACE, LEAST_GRACE_S = 0.5, 2.0
#: Median absolute deviations above the usual arrival: about seven standard deviations of a normal distribution.
GRACE_MADS = 10
#: A rank counts as fast as the fastest from this share of its speed on; and the least pace.
AS_FAST, LEAST_PACE = 0.8, 0.05
#: While too few have arrived, a rank hangs that is so many times slower than the last arrival: no rank's pace is less.
HUNG = 1 / LEAST_PACE
#: Weight of the last round in a rank's speed.
SPEED_WEIGHT = 0.5
#: Calls that need all ranks: the group waits for those that are away.
OF_ALL = ("save", "load", "reset")
#: Calls that begin a new round, with all ranks present.
ANEW = ("load", "reset")

log = logging.getLogger("wiretune.elastic")


class Trained(NamedTuple):
    """The part of a round that a rank has trained. A round may be cut into several calls."""

    steps: float = 0.0  # without those that it left out at its own pace
    seconds: float = 0.0  # without waits for other ranks


def deadline_s(arrivals: Sequence[float], num_ranks: int, lateness: Collection[float], *, done: float = 1.0) -> float:
    """Return the deadline, in seconds of training, for those of `num_ranks` ranks that have not arrived.

    It is infinite until more than half of the ranks have arrived, and while fewer than `KNOWN` values of `lateness` are
    known. `arrivals` are the times of the ranks that have arrived. `lateness` are earlier arrivals: how long after its
    round's median each came, as a share of that median. `done` is the share of the round that the ranks which have
    arrived have trained.
    """
    if len(arrivals) <= num_ranks // 2 or len(lateness) < KNOWN:
        return math.inf
    middle, usual = sorted(arrivals)[num_ranks // 2], statistics.median(lateness)
    deviation = statistics.median(abs(each - usual) for each in lateness)
    return middle + max(LEAST_GRACE_S, middle / done * max(LEAST_GRACE, usual + GRACE_MADS * deviation))


def paces(speeds: Mapping[int, float]) -> dict[int, float]:
    """Return the share of a round's steps that each rank can take in the time of the fastest rank.

    `speeds` are steps per second, by rank. This is DyLU of Liu et al. (2024), "Asynchronous local-SGD training for
    language modeling", section 5.
    """
    shares = {rank: speed / max(speeds.values()) for rank, speed in speeds.items()}
    return {rank: 1.0 if share >= AS_FAST else max(LEAST_PACE, share) for rank, share in shares.items()}


class ElasticGroup(Group):
    """Wraps `group`, and owns it. A round begins when at least `least` ranks are present.

    With `own_pace`, slower ranks take fewer of a round's steps, so that all arrive at about the same time.
    Raises WorkerLost only if all workers are lost at once, if calls keep failing, or if too few workers come back.
    """

    def __init__(self, group: WorkerGroup, *, least: int, own_pace: bool = False) -> None:
        self._group, self._least, self._own_pace = group, least, own_pace
        self.config, self.num_workers = group.config, group.num_workers
        self.backend, self.device = group.backend, group.device
        self.built, self.shapes, self.nodes = group.built, group.shapes, group.nodes
        self.recovery = Recovery()
        self._present, self._connected = list(range(self.num_workers)), list(range(self.num_workers))
        self._away: dict[int, str] = {}  # by absent rank: the call that it has still to answer
        self._lateness: deque[float] = deque(maxlen=REMEMBERED)
        self._speeds: dict[int, float] = {}  # steps per second, by rank
        self._round: dict[int, Trained] = {}  # by rank, of those that have trained in this round
        self._rounds: dict[str, dict[int, Trained]] = {}  # by slot: `_round` at the snapshot
        self._num_losses = 0
        self._untrained = {*range(self.num_workers)}  # those that have ended no call of a round since they were built
        self._failures: dict[int, list[str]] = {}  # by replaced rank, until it has trained: why its returns have failed
        self._due: dict[int, float] = {}  # by rank whose replacement has not been started: when it is to be

    def call(self, method: str, *args: Any, timeout_s: float | None = None) -> list[Any]:
        while True:
            self._wait_for(self.num_workers if method in OF_ALL else self._least)
            try:
                answers = self._together(method, *args, timeout_s=timeout_s)
            except WorkerLost as lost:
                self._lose(lost)
                continue
            self._num_losses = 0
            self._follow(method, *args)
            return answers

    def _follow(self, method: str, *args: Any) -> None:
        """Keep track of the current round after a call."""
        if method == "snapshot":
            self._rounds[args[0]] = dict(self._round)
        elif method == "restore":
            self._round = {rank: each for rank, each in self._rounds[args[0]].items() if rank in self._present}
        elif method in ANEW:
            self._round = {}

    def run(self, segment: Segment) -> SegmentResult:
        rounds: list[SegmentResult] = []
        while (begin := sum(len(each.losses) for each in rounds)) < segment.num_steps:
            self._wait_for(self._least)
            results = self._run_round(segment, begin)
            taken = self._merged(results)
            rounds.append(with_average(taken, self._meet()) if taken.meets and not taken.diverged else taken)
            if rounds[-1].diverged:
                break
        return in_a_row(rounds)

    def absorb(self, others: Sequence[Group]) -> None:
        raise ValueError("lanes do not join where workers may be away: leave out `lanes`, or `workers.min`")

    def rebuild(self, config: ReplicaConfig) -> None:
        self._wait_for(self.num_workers)
        self._group.rebuild(config)
        self.config = config
        self._lateness.clear()
        self._speeds, self._round, self._untrained = {}, {}, {*range(self.num_workers)}

    def close(self) -> None:
        self._group.close()

    def _run_round(self, segment: Segment, begin: int) -> dict[int, SegmentResult]:
        """Let the present ranks train until an average is due or the segment ends. Returns the results in time."""
        told, started = segment.model_dump(mode="json"), time.monotonic()
        limit_s = self.config.reply_timeout_s + (segment.num_steps - begin) * self.config.collective_timeout_s
        speeds = {rank: speed for rank, speed in self._speeds.items() if rank in self._present}
        pace = dict.fromkeys(self._present, 1.0) | (paces(speeds) if self._own_pace and speeds else {})
        for rank in self._present:
            self._group.ask(rank, "run_until_average", (told, begin, pace[rank]))
        results, arrivals, dead = dict[int, SegmentResult](), dict[int, float](), dict[int, Outcome]()
        before, end_s = {rank: self._round.get(rank, Trained()) for rank in self._present}, limit_s
        while missing := [rank for rank in self._present if rank not in results and rank not in dead]:
            heard = self._group.hear(missing, max(0.0, started + end_s - time.monotonic()))
            if not heard:
                break
            dead |= {rank: outcome for rank, outcome in heard.items() if outcome.kind == "death"}
            answered = [rank for rank in heard if rank not in dead]
            for rank, answer in zip(answered, judge({each: heard[each] for each in answered}), strict=True):
                results[rank] = SegmentResult.model_validate(answer)
                arrivals[rank] = before[rank].seconds + time.monotonic() - started
            if len(results) >= self._least:
                due_s = deadline_s([*arrivals.values()], len(self._present), self._lateness, done=self._done(results))
                left = [before[rank].seconds for rank in missing if rank not in results]
                if math.isinf(due_s):  # no rank counts as late yet, but one that hangs must not stop the others
                    due_s = min(left, default=0.0) + time.monotonic() - started + self.config.collective_timeout_s
                end_s = min(limit_s, due_s - min(left, default=0.0))
            elif answered and not self._untrained & ({*missing} - results.keys() - dead.keys()):  # which may compile
                end_s = min(limit_s, HUNG * (time.monotonic() - started) + self.config.collective_timeout_s)
        if not results:
            raise WorkerLost(self._present, "none of them has finished a round")
        for rank, arrival in arrivals.items():
            self._round[rank] = Trained(before[rank].steps + pace[rank] * len(results[rank].losses), arrival)
        self._count_as_trained(results)
        if any(each.meets for each in results.values()):
            self._end_round()
        lost = {rank: str(outcome.content) for rank, outcome in dead.items()}
        if is_hung := bool(missing) and (end_s == limit_s or len(results) < self._least):
            log.warning("workers %s hang: they have not arrived within %.0f s", missing, end_s)
            lost |= dict.fromkeys(missing, f"it has not arrived within {end_s:.0f} s")
        self._leave_behind(() if is_hung else missing, dead=lost)
        self._require_hope_of(self._least, lost)
        return results

    def _done(self, results: Mapping[int, SegmentResult]) -> float:
        """Return the share of the round that the first arrival has trained, as far as it knows the round's length."""
        rank, result = next(iter(results.items()))
        steps = self._round.get(rank, Trained()).steps + len(result.losses)
        return max(1.0, steps) / max(1.0, steps + result.steps_to_meeting)

    def _count_as_trained(self, ranks: Collection[int]) -> None:
        """Note that `ranks` have ended a call of a round, so that earlier failures to come back no longer count."""
        self._untrained -= {*ranks}
        self._failures = {rank: whys for rank, whys in self._failures.items() if rank not in ranks}

    def _end_round(self) -> None:
        """Remember each rank's speed and lateness in this round."""
        middle = statistics.median(each.seconds for each in self._round.values())
        for rank, (steps, seconds) in self._round.items():
            speed = steps / seconds
            self._speeds[rank] = (1 - SPEED_WEIGHT) * self._speeds.get(rank, speed) + SPEED_WEIGHT * speed
            self._lateness.append(seconds / middle - 1)
        self._round = {}

    def _leave_behind(self, late: Collection[int], *, dead: Mapping[int, str]) -> None:
        """Continue without these ranks. Late ranks train on; `dead` ones, with the reasons, are killed and replaced."""
        for rank in late:
            log.warning("worker %d is late: the others meet without it", rank)
            self._away[rank] = "run_until_average"
        for rank, why in dead.items():
            log.warning("worker %d is lost: the others go on, and it is replaced", rank)
            self._group.kill(rank)  # at once: one that hangs keeps its memory
            self._failures[rank] = [*self._failures[rank], why] if rank in self._failures else []
            self._untrained.add(rank)
            self._due[rank] = time.monotonic() + PAUSES_S[min(len(self._failures[rank]), len(PAUSES_S) - 1)]
            self._away[rank] = "build"
            self._connected = []  # nobody is connected with the new process yet
        self._replace_due()
        self._present = [rank for rank in self._present if rank not in {*late, *dead}]
        self._round = {rank: trained for rank, trained in self._round.items() if rank in self._present}
        self.recovery = replace(self.recovery, repairs=self.recovery.repairs + len(dead))

    def _replace_due(self, *, at_once: bool = False) -> None:
        """Start a new worker in place of each lost one whose pause is over, or of all `at_once`."""
        for rank in [rank for rank, due in self._due.items() if at_once or due <= time.monotonic()]:
            del self._due[rank]
            self._group.start(rank)
            self._group.ask(rank, "build", ())

    def _lose(self, lost: WorkerLost) -> None:
        """Continue without the ranks that a failed call lost. Raises `lost` if none is left, or calls keep failing."""
        self._num_losses += 1
        if self._num_losses > MAX_LOSSES or set(self._present) <= {*lost.ranks}:
            raise lost
        self._leave_behind((), dead=dict.fromkeys(lost.ranks, lost.why))
        self._connected = []  # whoever failed has left the others

    def _connect(self) -> None:
        if self._connected != self._present:
            self._group.meet(self._present)
            self._connected = [*self._present]

    def _together(self, method: str, *args: Any, timeout_s: float | None = None) -> list[Any]:
        """Connect the present ranks with each other, and return their answers. Raises WorkerLost."""
        self._connect()
        return self._group.call_on(self._present, method, *args, timeout_s=timeout_s)

    def _meet(self) -> SegmentResult:
        """Let the present ranks average. If one is lost meanwhile, undo the average and repeat it without that rank."""
        while True:
            try:
                answers = self._together("meet")
                break
            except WorkerLost as lost:
                self._lose(lost)
                self._undo_average()
        self._num_losses = 0
        absences = Counter(self.recovery.absences) + Counter(self._away.keys())
        self.recovery = replace(self.recovery, absences=absences)
        met = {rank: SegmentResult.model_validate(each) for rank, each in zip(self._present, answers, strict=True)}
        return self._merged(met)

    def _merged(self, results: Mapping[int, SegmentResult]) -> SegmentResult:
        """Merge the results of the ranks that were present. Absent ranks have sent nothing."""
        fields: dict[str, Any] = {
            field: tuple(
                getattr(results[rank], field)[0] if rank in results else {} for rank in range(self.num_workers)
            )
            for field in ("bytes_sent", "bytes_within")
        }
        merged = merge(list(results.values()), leaves_out=self._leaves_out)
        some_are_away = len(results) < self.num_workers
        fields["steps_by_workers"] = {len(results): len(merged.losses)} if some_are_away else {}
        return merged.model_copy(update=fields)

    def _undo_average(self) -> None:
        """Restore the remaining ranks to their state before the average, which some of them may have finished."""
        while True:
            try:
                self._group.call_on(self._present, "restore", BEFORE_AVERAGE)
                return
            except WorkerLost as lost:
                self._lose(lost)

    def _wait_for(self, num_ranks: int) -> None:
        """Wait until `num_ranks` ranks are present. Between two rounds, also take back every rank that is ready.

        Raises WorkerLost if too few come back in time, or those needed keep failing.
        """
        started = time.monotonic()
        while self._away:
            is_waiting = len(self._present) < num_ranks
            if self._round and not is_waiting:
                break  # a rank that joins within a round would count steps that others have taken
            self._replace_due(at_once=is_waiting)
            if is_waiting:
                with in_place_of_others():
                    self._group.await_places([rank for rank, call in self._away.items() if call == "build"])
            late = [rank for rank, call in self._away.items() if call != "build"]
            wait_s = self.config.collective_timeout_s if late else self.config.start_timeout_s
            called = [rank for rank in self._away if rank not in self._due]
            heard = self._group.hear(called, wait_s if is_waiting else 0.0)
            if heard:
                self._take_back(heard)
                self._require_hope_of(num_ranks, heard)
            elif not is_waiting:
                break
            elif late:
                self._leave_behind((), dead=dict.fromkeys(late, f"no answer within {wait_s:g} s"))  # they hang
            else:
                raise WorkerLost([*self._away], explained(f"not back within {wait_s:g} s", overload.here()))
        waited_s = time.monotonic() - started
        self.recovery = replace(self.recovery, seconds=self.recovery.seconds + waited_s)

    def _take_back(self, heard: Mapping[int, Outcome]) -> None:
        """Give ranks that have answered the state of a present rank, and replace those that have died."""
        ready = [rank for rank, outcome in heard.items() if outcome.kind != "death"]
        built = {rank: heard[rank] for rank in ready if self._away[rank] == "build"}
        judge({rank: heard[rank] for rank in ready if rank not in built})
        self._count_as_trained(set(ready) - built.keys())
        if built:
            with in_place_of_others():
                answers = judge(built)
                self._group.await_places([*built])  # at once: they have started, but their machines may be unfit
                self._group.agree(answers)
        donor, dead = self._present[0], {rank: heard[rank].content for rank in heard if rank not in ready}
        for rank in heard:
            del self._away[rank]
        self._present = sorted([*self._present, *ready])
        try:
            for rank in ready:
                self._pass_on(donor, rank)
        except WorkerLost as lost:
            dead |= dict.fromkeys([*ready, *lost.ranks], lost.why)
            if set(self._present) <= {*dead}:  # and nobody has the state any more
                raise
            self._connected = []
        self._leave_behind((), dead=dead)

    def _require_hope_of(self, num_ranks: int, heard: Collection[int]) -> None:
        """Raise WorkerLost if `num_ranks` ranks cannot be present without those that keep failing to come back.

        One of them must be among `heard`, and so have failed just now: the others may still be starting.
        """
        failing = [rank for rank in self._away if len(self._failures.get(rank, ())) > MAX_LOSSES]
        if self.num_workers - len(failing) < num_ranks and (failed := [rank for rank in failing if rank in heard]):
            whys = self._failures[failed[0]]
            raise WorkerLost(failing, f"not back after {len(whys)} attempts in a row, at last because {whys[-1]}")

    def _pass_on(self, donor: int, rank: int) -> None:
        """Send the state of `donor` to `rank` while the others wait. Raises WorkerLost."""
        self._connect()
        self._group.ask(donor, "give_state", (self._present.index(rank),))
        self._group.ask(rank, "take_state", (self._present.index(donor),))
        outcomes = self._group.hear([donor, rank], HANDOVER_S)
        patience = patience_s(outcomes.values(), collective_timeout_s=self.config.collective_timeout_s)
        rest_s = self.config.reply_timeout_s if patience is None else patience
        for other in {donor, rank} - outcomes.keys():
            silence = Outcome("silence", f"it has not ended the handover of the state {rest_s:g} s after its peer")
            outcomes |= self._group.hear([other], rest_s) or {other: silence}
        judge(outcomes, overload.here())
        log.info("worker %d is back", rank)
