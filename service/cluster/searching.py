"""One stage's search: probes, and what of them a later attempt needs, so that it makes none of them again."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from search.protocol import Strategy
from search.types import Candidate, Spent
from service.cluster.clock import TrainingClock
from service.cluster.lanes import Lane, ProbeRun, for_a_lane, one_at_a_time, probe_alone, side_by_side
from service.cluster.probe_ends import End, Held
from service.cluster.reports import Probe, Pushed
from service.cluster.trial_ledger import Progress, bytes_per_worker
from service.cluster.user_requests import Wishes
from service.job.parts import TrialSpec
from service.wire.records import ProbeDone
from trainers.training.group import Recovery


class OpenSearch(BaseModel):
    """A search under way, as far as its probes have ended. JSON both ways."""

    model_config = ConfigDict(frozen=True)

    seconds: float = Field(0.0, description="it has taken so far, on the training clock")
    probes: tuple[ProbeDone, ...] = ()
    running: tuple[Candidate, ...] = Field((), description="asked for, and not told")
    held: Held = Held()

    @property
    def stage(self) -> int:
        """The stage that opens."""
        return self.probes[0].stage


class Run(Protocol):
    """The run that a search is a part of."""

    spec: TrialSpec
    lanes: list[Lane]
    strategy: Strategy
    wishes: Wishes
    progress: Progress
    clock: TrainingClock

    def spent(self) -> Spent: ...
    def tell(self, probe: Probe) -> ProbeDone:
        """Report a probe that is charged and told."""

    def note(self, search: OpenSearch) -> None:
        """Report where the search is."""


class Search:
    """Mutable: the search of the stage that starts from `checkpoint`, which the first lane holds in memory."""

    def __init__(self, run: Run, checkpoint: str, begun: OpenSearch) -> None:
        self._run, self._checkpoint, self._begun = run, checkpoint, begun
        self.probes = list(begun.probes)
        self._opened_s = run.clock.seconds() - begun.seconds
        self._turn = threading.Lock()  # lanes' threads ask the strategy too

    @property
    def seconds(self) -> float:
        """Return what it has taken so far, on the training clock."""
        return self._run.clock.seconds() - self._opened_s

    def make(self) -> None:
        """Probe what the strategy asks for on all lanes at once."""
        run, lanes = self._run, self._run.lanes
        groups = [lane.group for lane in lanes]
        before = [group.recovery.seconds for group in groups]
        side_by_side(
            lanes,
            ask=one_at_a_time(self._turn, for_a_lane(self._asking(), groups[0].num_workers)),
            probe=self._probe,
            tell=self._tell,
            told=self._note,
            in_rounds=run.spec.budget.seconds is None,
        )
        waited = [group.recovery.seconds - start for group, start in zip(groups, before, strict=True)]
        run.clock.skip(max(waited) - waited[0])  # the clock knows the recovery of the main lane alone

    def _asking(self) -> Callable[[], Candidate | None]:
        """Return what gives first the probes that an earlier attempt did not end, then new ones."""
        ask, left = self._run.wishes.asking(self._run.strategy.ask), list(self._begun.running)
        return lambda: left.pop(0) if left else ask()

    def _probe(self, lane: Lane, candidates: Sequence[Candidate]) -> list[Probe]:
        run = self._run
        with self._turn:
            leading = run.strategy.leading() if lane is run.lanes[0] else None
        lane.rewind(self._checkpoint, leading=leading)
        if candidates[0].alone:
            run.wishes.check()
            return probe_alone(lane.group, candidates, opened=run.spent())
        return [self._probe_together(lane, *candidates)]

    def _probe_together(self, lane: Lane, candidate: Candidate) -> Probe:
        run = self._run
        probing = ProbeRun(lane.group, candidate, opened=run.spent(), budget=run.spec.budget)
        watch = run.wishes.watching(run.strategy.watch)
        probe = probing.run(watch=one_at_a_time(self._turn, watch), check=run.wishes.check)
        lane.ends.ended(probe)
        return probe

    def _tell(self, probes: Sequence[Probe]) -> None:
        """Charge what the workers of one lane trained side by side as the longest of it, and tell all of it."""
        run = self._run
        longest = max(probes, key=lambda probe: probe.measured.num_steps)
        for pushed in longest.pushed:
            run.progress.charge(pushed.result, is_probe=True, option=pushed.segment.contender)
        for probe in probes:
            seen = probe.measured.observation(probe.candidate.id, run.spent(), is_cut=probe.is_cut)
            one_at_a_time(self._turn, run.strategy.tell)(seen)
            self.probes.append(run.tell(probe))

    def _note(self, running: Sequence[Candidate]) -> None:
        held = self._run.lanes[0].ends.held
        with self._turn:  # the journal is read too
            self._run.note(
                OpenSearch(seconds=self.seconds, probes=tuple(self.probes), running=tuple(running), held=held)
            )

    def go_to(self, promoted: str | None) -> tuple[End, list[Pushed]] | None:
        """Go to the end of the probe with this id and return it; None: to the stage's start.

        One that was in an earlier attempt's memory is trained again first, as a recovery.
        """
        ends, clock = self._run.lanes[0].ends, self._run.clock
        lost = ends.lost(promoted)
        if lost is not None:
            started = time.monotonic()
            with clock.held():
                repeated = ends.regain(lost)
            spent = Recovery(
                seconds=time.monotonic() - started,
                bytes=sum(bytes_per_worker(pushed.result.bytes_sent) for pushed in repeated),
            )
            self._run.progress.charge_recovery(Recovery(), spent)
        return ends.go_to(promoted)
