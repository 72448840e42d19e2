"""Search a stage: probe on all lanes, decide, and go to the state from which the commit begins."""

import threading
import time
from collections.abc import Sequence
from contextlib import closing

from search.types import Candidate, Course, Observation
from service import tracing
from service.cluster import reports, trial_checkpoints
from service.cluster.lanes import Lane, ProbeRun, for_a_lane, probe_alone, side_by_side
from service.cluster.measured import OpenCommit, Probe, Pushed, bytes_per_worker
from service.cluster.probe_ends import End
from service.cluster.resume import OpenSearch
from service.cluster.trial_state import TrialState
from service.wire.records import Searched
from trainers.training.group import Recovery


@tracing.traced("search")
def search_stage(state: TrialState, begun: OpenSearch | None) -> OpenCommit | None:
    """Search from a snapshot and decide. Then return to the snapshot, or continue from the end of the winning probe.

    `begun` is the search that an earlier attempt left open. Returns the commit. It contains the winner's steps if that
    probe is promoted. None: a stop has left the search open. Then nothing is decided, and the state is the snapshot's:
    a run that goes on later searches to the end.
    """
    main = state.lanes[0]
    main.hold(state.stage.checkpoint, begun.held if begun else None)
    if begun is None:
        state.stage = state.stage.model_copy(update={"progress": state.progress.model_copy(deep=True)})
        state.strategy.steer(state.recorder.sink.steers())  # an open search has taken its steers already
    search = _Search(state, begun or OpenSearch())
    search.make()
    if search.is_left:
        search.go_to(None)
        state.progress.charge_seconds(seconds_search=search.seconds)
        return None
    held = () if is_to_join(state) else main.ends.ids  # only the main lane's ends can be promoted
    commit = OpenCommit(decision=state.strategy.decide(held))
    promoted = search.go_to(commit.decision.promoted)
    state.cost = None if search.probes else state.cost
    state.progress.charge_seconds(seconds_search=search.seconds)
    first_step = state.progress.step
    state.recorder.report(*reports.decided(state.trial_id, commit.decision, search.probes, first_step=first_step))
    if promoted is not None:  # the group is at that probe's end, and its steps are the commit's first
        end, pushed = promoted
        option = commit.decision.values.option
        [probe] = (each for each in search.probes if each.probe_id == end.candidate.id)
        state.progress.promote(
            num_steps=probe.num_steps, num_bytes=probe.bytes_sent, seconds=end.seconds, option=option
        )
        for each in pushed:
            commit.measured.add(each.result.model_copy(update={"alignments": ()}))  # cosines of a rate that fell to 0
            state.keep_segment(commit, each)
    return commit


def is_to_join(state: TrialState) -> bool:
    """Return whether the lanes join after this search, at the state before the first step."""
    return state.spec.lanes.after == "batch" and len(state.lanes) > 1


class _Search:
    """The probes of a stage, whose start the first lane holds in memory. Mutable."""

    def __init__(self, state: TrialState, begun: OpenSearch) -> None:
        self._state, self._begun = state, begun
        self.probes = list(begun.probes)
        self._opened_s = state.seconds() - begun.seconds
        self._opened = state.spent().model_copy(update={"seconds": self._opened_s})
        self._turn = threading.Lock()  # lanes' threads call the strategy, too
        self.is_left = False  # whether a stop has come before its end

    @property
    def seconds(self) -> float:
        """The seconds of the search so far, on the training clock."""
        return self._state.seconds() - self._opened_s

    def make(self) -> None:
        """Probe the strategy's candidates on all lanes at once. Charge, tell and report the probes that end.

        After a stop, the running probes end at their next quarter and are only charged, so that the last report is
        where a later attempt continues.
        """
        state, lanes = self._state, self._state.lanes
        groups = [lane.group for lane in lanes]
        before = [group.recovery.seconds for group in groups]
        left = list(self._begun.running)  # probes that an earlier attempt left running come first

        def next_candidate() -> Candidate | None:
            candidate = left.pop(0) if left else state.strategy.ask()
            return None if candidate is None or self._leaves() else candidate

        next_candidates = for_a_lane(next_candidate, groups[0].num_workers)

        def ask() -> tuple[Candidate, ...]:
            with self._turn:
                return next_candidates()

        in_rounds = state.spec.budget.seconds is None
        with closing(side_by_side(lanes, ask=ask, probe=self._probe, in_rounds=in_rounds)) as rounds:
            for ended, running in rounds:
                for probes in ended:
                    self._charge(probes)
                    if not self.is_left:  # else a stop may have cut them, which says nothing of their values
                        self._tell(probes)
                if not self.is_left:
                    self._report(running)
        waited = [group.recovery.seconds - start for group, start in zip(groups, before, strict=True)]
        state.clock.skip(max(waited) - waited[0])  # the clock leaves out only the main lane's recovery

    def _probe(self, lane: Lane, candidates: Sequence[Candidate]) -> list[Probe]:
        """Train `candidates` on `lane`, in its thread."""
        state = self._state
        with self._turn:
            leading = state.strategy.leading() if lane is state.lanes[0] else None
        lane.rewind(state.stage.checkpoint, leading=leading)
        if candidates[0].alone:
            state.requests.check()
            return probe_alone(lane.group, candidates, opened=state.spent())
        [candidate] = candidates
        probing = ProbeRun(lane.group, candidate, opened=state.spent(), budget=state.spec.budget)

        def watch(seen: Observation) -> Course:
            with self._turn:
                return "end" if self._leaves() else state.strategy.watch(seen)

        probe = probing.run(watch=watch, check=state.requests.check)
        lane.ends.ended(probe)
        return [probe]

    def _leaves(self) -> bool:
        """Return whether the user has asked for a stop while there was more to probe."""
        self.is_left = self.is_left or self._state.requests.is_stop()
        return self.is_left

    def _charge(self, probes: Sequence[Probe]) -> None:
        """Charge only the longest of the probes that a lane's workers trained side by side."""
        longest, group = max(probes, key=lambda probe: probe.measured.num_steps), self._state.group
        there = group.num_workers if longest.candidate.alone else None
        for pushed in longest.pushed:
            option = pushed.segment.option
            self._state.progress.charge(pushed.result, is_probe=True, option=option, num_workers=there)

    def _tell(self, probes: Sequence[Probe]) -> None:
        """Tell the strategy of probes that have ended, and report them."""
        state, ended_s = self._state, self._state.seconds()
        for probe in probes:
            seen = probe.measured.observation(probe.candidate.id, state.spent(), is_cut=probe.is_cut)
            with self._turn:
                state.strategy.tell(seen.model_copy(update={"searched_from": self._opened}))
            done = reports.probe_done(state.trial_id, probe, ended_s=ended_s)
            state.recorder.report(done, state.recorder.bill(state.progress, state.second))
            self.probes.append(done)

    def _report(self, running: Sequence[Candidate]) -> None:
        """Report what a later attempt needs to continue the search, in which `running` have not ended."""
        state = self._state
        with self._turn:  # the strategy's journal is read, too
            state.progress.stop_clock(state.seconds(), num_held=state.recorder.num_held)
            state.recorder.complete(state.progress, state.second)
            held = state.lanes[0].ends.held
            search = OpenSearch(seconds=self.seconds, probes=tuple(self.probes), running=tuple(running), held=held)
            resume = trial_checkpoints.resume_from(state, state.stage.checkpoint, search=search)
            searched = Searched(
                trial_id=state.trial_id,
                stage=search.stage,
                step=state.progress.step,
                probes=tuple(probe.probe_id for probe in search.probes),
                bill=state.progress.bill,
                resume=resume,
            )
            state.recorder.report(searched)

    def go_to(self, promoted: str | None) -> tuple[End, list[Pushed]] | None:
        """Go to the end of the probe `promoted` and return it; None: to the stage's start.

        An end that was only in an earlier attempt's memory is trained again first. This counts as recovery.
        """
        ends, clock = self._state.lanes[0].ends, self._state.clock
        lost = ends.lost(promoted)
        if lost is not None:
            started = time.monotonic()
            with clock.held():
                repeated = ends.regain(lost)
            spent = Recovery(
                seconds=time.monotonic() - started,
                bytes=sum(bytes_per_worker(pushed.result.bytes_sent) for pushed in repeated),
            )
            self._state.progress.charge_recovery(Recovery(), spent)
        return ends.go_to(promoted)
