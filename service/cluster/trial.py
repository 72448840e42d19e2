"""The stage loop of one training run: any Group, any Strategy, no Ray. `train` reads top to bottom.

Control never calls upward: the strategy returns candidates and decisions, this module acts on them.
"""

import time
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from search import strategies
from search.prior import NO_PRIOR, Prior
from search.protocol import Strategy
from search.reading import Ending
from search.types import Allowance, Candidate, Course, Observation, Spent, Values
from service.cluster import chunks, reports
from service.cluster.checkpoints import Keeper
from service.cluster.opening import STAGE, opening_space
from service.cluster.progress import Measured, OpenCommit, Progress
from service.records import AnyRecord, Billed, Checkpointed, StageClosed, TrialFinished, TrialStarted
from service.spec import TrialSpec
from trainers.group import Group, Recovery
from trainers.segment import Segment, SegmentResult
from trainers.workload import WorkloadError

#: Shares of its allowance after which the strategy may end a probe, and the whole.
PROBE_PARTS = (0.25, 0.5, 0.75, 1.0)


class Sink(Protocol):
    """Where records go. `flush` waits until they are stored; both raise `Stopped` when the run must end."""

    def report(self, *records: AnyRecord) -> None: ...
    def flush(self, *records: AnyRecord) -> None: ...
    def is_clear(self) -> bool:
        """Whether all that was reported is stored."""


class StageStart(BaseModel):
    """Where a diverged commit is rewound to."""

    checkpoint: str
    progress: Progress


class Resume(BaseModel):
    """All that a later attempt needs to go on from a checkpoint as if nothing had happened."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    fingerprint: str  # of the training task
    checkpoint: str
    checkpoints: list[str]  # all that are still on storage, oldest first
    stage: StageStart
    journal: dict[str, Any]
    progress: Progress
    cost: chunks.StepCost | None
    diverged_values: Values | None
    open_commit: OpenCommit | None  # None: the stage is closed


def train(
    spec: TrialSpec,
    group: Group,
    sink: Sink,
    *,
    trial_id: str,
    storage_url: str,
    resume: dict[str, Any] | None = None,
    prior: Prior = NO_PRIOR,
) -> TrialFinished:
    """Train one run to the end of its budget, and return what came of it; its search may learn from `prior`."""
    run = _Run(spec, group, sink, trial_id=trial_id, storage_url=storage_url)
    commit = run.begin(Resume.model_validate(resume) if resume else None, prior)
    while commit is not None or not run.is_over():
        commit = commit or run.open_stage()
        if commit.decision.values == run.diverged_values:
            return run.finish("diverged")  # the strategy has nothing else to offer
        run.close_stage(commit, run.train_commit(commit))
        commit = None
    return run.finish("completed")


class _Run:
    """The run's state, and the few acts it is made of."""

    def __init__(self, spec: TrialSpec, group: Group, sink: Sink, *, trial_id: str, storage_url: str) -> None:
        self.spec, self.group, self.sink = spec, group, sink
        self.trial_id = trial_id
        self.keeper = Keeper(group, f"{storage_url}/{trial_id}", keep=spec.checkpoint.keep)
        self.strategy: Strategy
        self.progress = Progress()
        self.cost: chunks.StepCost | None = None  # of a step with the values in force; None: not known yet
        self.diverged_values: Values | None = None
        self._stage: StageStart
        self._billed = Recovery()  # what of the group's recovery is on the bill
        self._clock_zero = self._now()
        self._saved_s = 0.0

    # -- time and totals ------------------------------------------------------------------------------------

    def seconds(self) -> float:
        """Return the training clock."""
        return self._now() - self._clock_zero

    def _now(self) -> float:
        """Return monotonic seconds that stand still while the group recovers from the loss of workers."""
        return time.monotonic() - self.group.recovery.seconds

    def spent(self) -> Spent:
        return Spent(steps=self.progress.steps, bytes=self.progress.bytes, seconds=self.seconds())

    def is_over(self) -> bool:
        whole = chunks.within(Allowance(), self.spec.budget)
        return chunks.is_reached(whole, self.spent(), self.cost)

    # -- begin and end --------------------------------------------------------------------------------------

    def begin(self, resume: Resume | None, prior: Prior) -> OpenCommit | None:
        """Start at step 0, or go on where a checkpoint stands; returns the commit it interrupted, if any."""
        self.sink.report(
            TrialStarted(
                trial_id=self.trial_id,
                arm=self.spec.arm,
                seed=self.spec.seed,
                backend=self.group.backend,
                device=self.group.device,
                metrics=dict(self.group.metrics),
            )
        )
        if resume is None:
            space, warm_up = opening_space(self.spec, self.group)
            self.strategy = strategies.build(
                self.spec.controller, space=space, seed=self.spec.seed, budget=self.spec.budget, prior=prior
            )
            self.progress.charge_warm_up(warm_up)
            self._stage = StageStart(checkpoint=self.keeper.save(0), progress=self.progress)
            self._clock_zero = self._now()
            self.evaluate()
            return None
        self._go_on(resume)
        return resume.open_commit

    def _go_on(self, resume: Resume) -> None:
        if resume.fingerprint != self.group.fingerprint:
            raise WorkloadError(
                "the model's starting weights, or its data, are not those that this job began with; submit it anew"
            )
        self._stage = resume.stage
        if resume.open_commit is not None:
            self.group.load(resume.stage.checkpoint)
            self.group.snapshot(STAGE)
        self.group.load(resume.checkpoint)
        self.keeper.saved = resume.checkpoints
        self.strategy = strategies.restore(resume.journal)
        self.progress, self.cost = resume.progress, resume.cost
        self.diverged_values = resume.diverged_values
        self._saved_s = self.progress.seconds
        self._clock_zero = self._now() - self.progress.seconds

    def finish(self, outcome: Literal["completed", "diverged"]) -> TrialFinished:
        """Stop the clock, evaluate what is kept, export it."""
        self.progress.stop_clock(self.seconds())
        evaluation = self.group.evaluate()
        self.progress.charge_bytes(evaluation.bytes_sent)
        self.sink.report(*reports.evaluated(self.trial_id, evaluation, self.progress.step, self.progress.seconds))
        weights_url = self.keeper.export()
        self._bill_recovery()
        finished = TrialFinished(
            trial_id=self.trial_id,
            outcome=outcome,
            validation_loss=reports.finite(evaluation.loss),
            validation_metrics={name: reports.finite(value) for name, value in evaluation.metrics.items()},
            schedule=tuple(self.progress.schedule),
            bill=self.progress.bill,
            weights_url=weights_url,
        )
        self.sink.flush(finished)
        return finished

    # -- a stage --------------------------------------------------------------------------------------------

    def open_stage(self) -> OpenCommit:
        """Search from a snapshot, decide, and rewind."""
        started, sent = self.seconds(), self.progress.bytes
        self.group.snapshot(STAGE)
        self._stage = StageStart(checkpoint=self._stage.checkpoint, progress=self.progress.model_copy(deep=True))
        probes = []
        while (candidate := self.strategy.ask()) is not None:
            probes.append(self._probe(candidate))
            self.sink.report(reports.probe_done(self.trial_id, probes[-1], None), self._bill_so_far())
        decision = self.strategy.decide()
        if probes:
            self.group.restore(STAGE)
            self.cost = None
        self.progress.charge_seconds(seconds_search=self.seconds() - started)
        self.sink.report(
            *reports.decided(
                self.trial_id,
                decision,
                probes,
                first_step=self.progress.step,
                search_bytes=self.progress.bytes - sent,
            )
        )
        return OpenCommit(decision=decision)

    def _probe(self, candidate: Candidate) -> reports.Probe:
        self.group.restore(STAGE)
        self.cost = None
        measured, opened = Measured(), self.spent()
        for part in PROBE_PARTS:
            allowed = chunks.part_of(candidate.allowance, part)
            self._run_probe(candidate.values, allowed, opened=opened, into=measured)
            if measured.diverged or self.strategy.watch(self._observation(measured, candidate.id)) != "go_on":
                break
        self.strategy.tell(self._observation(measured, candidate.id))
        return reports.Probe(candidate=candidate, measured=measured, seconds=self.seconds() - opened.seconds)

    def _run_probe(self, values: Values, allowed: Allowance, *, opened: Spent, into: Measured) -> None:
        until = chunks.within(chunks.until_totals(opened, allowed), self.spec.budget)
        at_least = opened.steps + allowed.min_steps
        while not into.diverged and self._goes_on(until, at_least):
            missing = at_least - self.progress.steps
            num_steps = chunks.next_chunk(
                until, self.spent(), self.cost, most=missing if missing > 0 else chunks.NO_LIMIT
            )
            self._push(values, values, num_steps, into=into, is_probe=True)

    def _goes_on(self, until: Allowance, at_least: int) -> bool:
        return self.progress.steps < at_least or not chunks.is_reached(until, self.spent(), self.cost)

    def train_commit(self, commit: OpenCommit) -> Course:
        """Train the steps that stay, evaluating and checkpointing on the way; returns how it ended."""
        until = chunks.within(commit.decision.commit_until, self.spec.budget)
        while not chunks.is_reached(until, self.spent(), self.cost):
            self._commit_chunk(commit, until)
            if commit.measured.diverged:
                return "roll_back"  # what follows is of states that stay
            if self.progress.step % self.spec.objective.every == 0:
                self.evaluate()
                course = self.strategy.watch(self._observation(commit.measured, None))
                if course != "go_on":
                    return course
            is_due = self.seconds() - self._saved_s >= self.spec.checkpoint.every_seconds
            if is_due and self.sink.is_clear():  # while the API is silent nobody would know of it
                self.sink.report(self._checkpoint(commit))
        return "end"

    def _commit_chunk(self, commit: OpenCommit, until: Allowance) -> None:
        every = self.spec.objective.every
        num_steps = chunks.next_chunk(until, self.spent(), self.cost, most=every - self.progress.step % every)
        start, started = self.strategy.values(self.spent()), self.seconds()
        end = self.strategy.values(self._spent_after(num_steps - 1))  # what its last step uses
        segment, result = self._push(start, end, num_steps, into=commit.measured, is_probe=False)
        if result.diverged:
            return
        self.progress.step = result.first_step + len(result.losses)
        self.progress.schedule_segment(segment, result, commit.decision.reason)
        self.sink.report(
            *reports.committed(self.trial_id, segment, result, started_s=started, bytes_sent=self.progress.bytes),
            self._bill_so_far(),
        )

    def _spent_after(self, num_steps: int) -> Spent:
        spent, cost = self.spent(), self.cost or chunks.StepCost(bytes=0, seconds=0)
        return Spent(
            steps=spent.steps + num_steps,
            bytes=spent.bytes + int(num_steps * cost.bytes),
            seconds=spent.seconds + num_steps * cost.seconds,
        )

    def close_stage(self, commit: OpenCommit, course: Course) -> None:
        """Tell the strategy, keep the stage or take it back, as `course` says, and wait until that is stored."""
        measured, is_kept = commit.measured, course == "end"
        observation = self._observation(measured, None)
        self.strategy.tell(observation.model_copy(update={"rolled_back": not is_kept}))
        if measured.diverged:
            self.diverged_values = commit.decision.values
        if not is_kept:
            self.cost = None
            self.group.restore(STAGE)
            self.progress.rewind_to(self._stage.progress)
        resume = self._save(None)
        self._wait_for(
            StageClosed(
                trial_id=self.trial_id,
                stage=commit.decision.stage,
                step=self.progress.step,
                num_steps=measured.num_steps if is_kept else 0,
                density=measured.density,
                threshold=measured.threshold,
                loss=reports.finite(Ending.of(observation).level),
                bill=self.progress.bill,
                resume=resume,
            )
        )

    def _wait_for(self, record: AnyRecord) -> None:
        """Report `record` and wait until it is stored; a silent API is not on the clock."""
        started = time.monotonic()
        self.sink.flush(record)
        self._clock_zero += time.monotonic() - started

    # -- acts -----------------------------------------------------------------------------------------------

    def _push(
        self, start: Values, end: Values, num_steps: int, *, into: Measured, is_probe: bool
    ) -> tuple[Segment, SegmentResult]:
        ramps = end.learning_rate != start.learning_rate
        segment = Segment(
            num_steps=num_steps,
            learning_rate=start.learning_rate,
            final_learning_rate=end.learning_rate if ramps else None,
            level=start.level,
        )
        self.sink.report()  # hears a cancel
        result = self.group.run(segment)
        into.add(result)
        self.progress.charge(result, is_probe=is_probe)
        self.cost = chunks.cost_of(result) or self.cost
        return segment, result

    def _observation(self, measured: Measured, candidate_id: str | None) -> Observation:
        return Observation(
            candidate_id=candidate_id,
            losses=tuple(measured.losses),
            step_seconds=tuple(measured.step_seconds),
            bytes_sent=measured.bytes_sent,
            density=measured.density,
            diverged=measured.diverged,
            spent=self.spent(),
        )

    def evaluate(self) -> None:
        """Evaluate the committed line, on the clock."""
        started = self.seconds()
        evaluation = self.group.evaluate()
        self.progress.charge_bytes(evaluation.bytes_sent)
        self.progress.charge_seconds(seconds_evaluation=self.seconds() - started)
        self.sink.report(*reports.evaluated(self.trial_id, evaluation, self.progress.step, self.seconds()))

    def _bill_so_far(self) -> Billed:
        now = {"seconds_training": self.seconds(), "steps": self.progress.step}
        return Billed(trial_id=self.trial_id, bill=self.progress.bill.model_copy(update=now))

    def _bill_recovery(self) -> None:
        self.progress.charge_recovery(self._billed, self.group.recovery)
        self._billed = self.group.recovery

    def _checkpoint(self, commit: OpenCommit) -> Checkpointed:
        resume = self._save(commit)
        return Checkpointed(
            trial_id=self.trial_id,
            stage=commit.decision.stage,
            step=self.progress.step,
            bill=self.progress.bill,
            resume=resume,
        )

    def _save(self, commit: OpenCommit | None) -> dict[str, Any]:
        """Write a checkpoint; return what a later attempt needs to go on from it. `commit` is the open one."""
        started = self.seconds()
        url = self.keeper.save(self.progress.step, needed=[self._stage.checkpoint])
        self._saved_s = self.seconds()
        self.progress.charge_seconds(seconds_checkpoint=self._saved_s - started)
        self.progress.stop_clock(self._saved_s)
        self._bill_recovery()
        if commit is None:
            self._stage = StageStart(checkpoint=url, progress=self.progress)
        return Resume(
            fingerprint=self.group.fingerprint,
            checkpoint=url,
            checkpoints=self.keeper.saved,
            stage=self._stage,
            journal=dict(self.strategy.state_dict()),
            progress=self.progress,
            cost=self.cost,
            diverged_values=self.diverged_values,
            open_commit=commit,
        ).model_dump(mode="json")
