"""The stage loop of one training run: any Group, any Strategy, no Ray. `train` reads top to bottom.

Control never calls upward: the strategy returns candidates and decisions, this module acts on them.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

from search import strategies
from search.budget.spending import fraction_spent
from search.past_jobs.prior import NO_PRIOR, Prior
from search.protocol import Strategy
from search.space import SearchSpace
from search.types import Allowance, Course, Spent, Values
from service.cluster import reports, segment_length
from service.cluster.checkpoints import Keeper
from service.cluster.clock import TrainingClock
from service.cluster.insurance import Insurance, InsuranceSink, insured, loss_of, own_schedule
from service.cluster.lanes import Lane, recovered, require_equal
from service.cluster.probe_ends import BEST, End
from service.cluster.reports import Sink
from service.cluster.resume import Resume, StageStart
from service.cluster.searching import OpenSearch, Search
from service.cluster.trial_ledger import BEST_SPACING, Best, OpenCommit, Progress
from service.cluster.user_requests import Wishes
from service.cluster.warm_up import STAGE, opening_space
from service.job.parts import TrialSpec
from service.wire.records import AnyRecord, Billed, Checkpointed, ProbeDone, TrialFinished
from trainers.training.group import Group, Recovery
from trainers.training.segment import Evaluation
from trainers.workload import WorkloadError


def train(
    spec: TrialSpec,
    group: Group,
    sink: Sink,
    *,
    trial_id: str,
    storage_url: str,
    resume: dict[str, Any] | None = None,
    spare: Sequence[Group] = (),
    prior: Prior = NO_PRIOR,
) -> TrialFinished:
    """Train one run to the end of its budget, and return what came of it.

    `spare` are its lanes beside `group`; its search may learn from `prior`.
    """
    run = _Run(spec, [group, *spare], sink, trial_id=trial_id, storage_url=storage_url)
    try:
        return run.train(Resume.model_validate(resume).within(spec.budget) if resume else None, prior)
    finally:
        run.close()


class _Run:
    """The run's state, and the few acts it is made of."""

    def __init__(
        self, spec: TrialSpec, groups: Sequence[Group], sink: Sink, *, trial_id: str, storage_url: str
    ) -> None:
        require_equal(groups)
        self.spec, self.group, self.sink, self.wishes = spec, groups[0], sink, Wishes(sink)
        self.groups, self.lanes = groups, [Lane(group) for group in groups]  # what they do now
        self.insurance: Insurance[_Run] | None = None
        self.trial_id, self.storage_url = trial_id, storage_url
        self.keeper = Keeper(self.group, f"{storage_url}/{trial_id}", keep=spec.checkpoint.keep)
        self.strategy: Strategy
        self.progress = Progress()
        self.cost: segment_length.StepCost | None = None  # of a step with the values in force; None: not known yet
        self.diverged_values: Values | None = None
        self._space: SearchSpace
        self._stage: StageStart
        self._known: list[str] = []  # the checkpoint that the API knew of when the last one was reported
        self._billed = Recovery()  # what of the group's recovery is on the bill
        self.clock, self._saved_s = TrainingClock(self.group), 0.0
        self._begun: OpenSearch | None = None  # by an earlier attempt
        self.exported: Best | None = None  # None: the weights are those of the end
        self.end_loss = math.nan
        self._save_took_s = 0.0

    def seconds(self) -> float:
        """Return the training clock."""
        return self.clock.seconds()

    def spent(self) -> Spent:
        return Spent(steps=self.progress.steps, bytes=self.progress.bytes, seconds=self.seconds())

    def is_over(self) -> bool:
        return self._ends_at(segment_length.within(Allowance(), self.spec.budget))

    def _ends_at(self, until: Allowance) -> bool:
        """Return whether these totals are reached, or the user wants what there is."""
        return self.wishes.is_stop() or segment_length.is_reached(until, self.spent(), self.cost)

    # -- begin and end --------------------------------------------------------------------------------------

    def train(self, resume: Resume | None, prior: Prior = NO_PRIOR) -> TrialFinished:
        """Train stage by stage to the end of the budget."""
        commit = self.begin(resume, prior)
        while commit is not None or self._begun is not None or not self.is_over():
            commit = commit or self.open_stage()
            if commit.decision.values == self.diverged_values:
                return self.finish("diverged")  # the strategy has nothing else to offer
            self.close_stage(commit, self.train_commit(commit))
            commit = None
        return self.finish("completed")

    def begin(self, resume: Resume | None, prior: Prior = NO_PRIOR) -> OpenCommit | None:
        """Start at step 0, or go on where a checkpoint stands; returns the commit it interrupted, if any."""
        self.sink.report(reports.started(self.trial_id, self.spec, self.group))
        if resume is None:
            self._space, warm_ups = opening_space(self.spec, self.groups)
            for warm_up in warm_ups:
                self.progress.charge_warm_up(warm_up)
            self.strategy = strategies.build(
                self.spec.controller, space=self._space, seed=self.spec.seed, budget=self.spec.budget, prior=prior
            )
            self._stage = StageStart(checkpoint=self.keeper.save(0), progress=self.progress)
            for lane in self.lanes:
                lane.hold(self._stage.checkpoint)  # their states are equal by construction
            self.clock.start()
            self._evaluate_start()
            return None
        self._go_on(resume)
        return resume.open_commit

    def _go_on(self, resume: Resume) -> None:
        if resume.fingerprint != self.group.fingerprint:
            raise WorkloadError(
                "the model's starting weights, or its data, are not those that this job began with; submit it anew"
            )
        if self.spec.lanes.after == "batch" and not (resume.search and resume.search.stage == 0):
            self._join_lanes()
        resume = resume.among(self.spec, self.group)
        if resume.insurance is not None:
            self._insure(Resume.model_validate(resume.insurance))
        self._stage = resume.stage
        if resume.open_commit is not None:
            self.group.load(resume.stage.checkpoint)
            self.group.snapshot(STAGE)
        self.group.load(resume.checkpoint)
        self.keeper.saved = resume.checkpoints
        self.strategy = strategies.restore(resume.journal)
        self._space = SearchSpace.model_validate(resume.journal["space"])
        self.progress, self.cost = resume.progress, resume.cost
        self.diverged_values, self._begun = resume.diverged_values, resume.search
        self._saved_s = self.progress.seconds
        self.clock.start(self.progress.seconds)

    def finish(self, outcome: Literal["completed", "diverged"]) -> TrialFinished:
        """Stop the clock, evaluate what is kept, export it: of two lines the better one."""
        ended = self.seconds()
        beside = [self.insurance.line] if self.insurance and self.insurance.wait() == "end" else []
        self.progress.stop_clock(max([ended, *(line.progress.seconds for line in beside)]))
        lines = [(line, line.evaluate_end()) for line in (self, *beside)]
        line, evaluation = min(lines, key=lambda each: loss_of(each[1]))
        weights_url = line.keeper.export()
        self._bill_lanes()
        finished = TrialFinished(
            trial_id=self.trial_id,
            outcome=outcome if line is self else "completed",
            line="main" if line is self else "insurance",
            validation_loss=reports.finite(evaluation.loss),
            validation_metrics={name: reports.finite(value) for name, value in evaluation.metrics.items()},
            exported_step=line.exported and line.exported.step,
            end_validation_loss=reports.finite(line.end_loss) if line.exported else None,
            schedule=line.progress.schedule_to(line.exported) if line.exported else tuple(line.progress.schedule),
            bill=self.progress.bill,
            weights_url=weights_url,
        )
        self.sink.flush(finished)
        return finished

    def evaluate_end(self) -> Evaluation:
        """Evaluate what the clock has stopped at, or go to the best checkpoint where that has the lower loss."""
        evaluation = self.group.evaluate()
        self.progress.charge_bytes(evaluation)
        self.sink.report(*reports.evaluated(self.trial_id, evaluation, self.progress.step, self.progress.seconds))
        self.end_loss, best = evaluation.loss, self.progress.best
        if self.spec.checkpoint.export == "last" or best is None or best.step is None:
            return evaluation
        if not best.loss < loss_of(evaluation):
            return evaluation
        self.exported = best
        self.group.load(best.checkpoint)
        evaluation = self.group.evaluate()
        self.progress.charge_bytes(evaluation)
        return evaluation

    def close(self) -> None:
        """End what runs beside this line."""
        if self.insurance is not None:
            self.insurance.close()

    # -- the spare lanes ------------------------------------------------------------------------------------

    def _is_to_join(self) -> bool:
        """Return whether the lanes become one after this search, in the state before the first step."""
        return self.spec.lanes.after == "batch" and len(self.lanes) > 1

    def _employ_spare_lanes(self) -> None:
        """Have them do, after the first search, what the job says."""
        if self._is_to_join():
            self._join_lanes()
            self._stage.checkpoint = self.keeper.save(0)  # the one before is of fewer ranks
            self.progress.best = None
            self.progress.note_checkpoint(self._stage.checkpoint)
            self.lanes[0].hold(self._stage.checkpoint)
        if self.spec.lanes.after == "insurance":
            start = self._stage.checkpoint
            self._insure(own_schedule(self.spec, self._space, self.group, start=start, seconds=self.seconds()))

    def _join_lanes(self) -> None:
        self.group.absorb(self.groups[1:])
        self.lanes = self.lanes[:1]
        self.cost = None

    def _insure(self, resume: Resume) -> None:
        """Train the second line from `resume` on, on the next lane, beside this one."""
        sink = InsuranceSink(self.sink, resume.model_dump(mode="json"))
        url, groups = f"{self.storage_url}/{self.trial_id}/insurance", [self.lanes.pop(1).group]
        line = _Run(insured(self.spec), groups, sink, trial_id=self.trial_id, storage_url=url)
        self.insurance = Insurance(line, sink, line.begin(resume))

    def train_alone(self, commit: OpenCommit | None) -> Course:
        """Train the one stage of a strategy that does not search, from its start or within `commit`."""
        if commit is None:
            self._evaluate_start()
        course = self.train_commit(commit or self.open_stage())
        self.progress.stop_clock(self.seconds())
        return course

    def needed(self) -> set[str]:
        """Return the checkpoints that must stay on storage, whatever their age."""
        beside = self.insurance.line.needed() if self.insurance else set()
        held = (lane.holds for lane in self.lanes if lane.holds)
        best = (each.best.checkpoint for each in (self.progress, self._stage.progress) if each.best)
        return {self._stage.checkpoint, *self._known, *self.progress.steady, *best, *beside, *held}

    # -- a stage --------------------------------------------------------------------------------------------

    def open_stage(self) -> OpenCommit:
        """Search from a snapshot, decide, and rewind, or go on from the end of the probe that won."""
        begun, main = self._begun or OpenSearch(), self.lanes[0]
        main.hold(self._stage.checkpoint, begun.held)
        if self._begun is None:
            self._stage = StageStart(checkpoint=self._stage.checkpoint, progress=self.progress.model_copy(deep=True))
        self._begun = None
        search = Search(self, self._stage.checkpoint, begun)
        search.make()
        held = () if self._is_to_join() else main.ends.ids  # what other lanes hold stays there
        commit = OpenCommit(decision=self.strategy.decide(held))
        promoted = search.go_to(commit.decision.promoted)
        self.cost = None if search.probes else self.cost
        self.progress.charge_seconds(seconds_search=search.seconds)
        first_step = self.progress.step
        self.sink.report(*reports.decided(self.trial_id, commit.decision, search.probes, first_step=first_step))
        if promoted is not None:
            self._promote(*promoted, commit)
        if commit.decision.stage == 0:
            self._employ_spare_lanes()
        return commit

    def tell(self, probe: reports.Probe) -> ProbeDone:
        """Report a probe that is charged and told."""
        done = reports.probe_done(self.trial_id, probe)
        self.sink.report(done, self._bill_so_far())
        return done

    def note(self, search: OpenSearch) -> None:
        """Report what a later attempt needs to go on with the search."""
        self.progress.stop_clock(self.seconds())
        self._bill_lanes()
        resume = self._resume(self._stage.checkpoint, search=search)
        self.sink.report(reports.searched(self.trial_id, search.probes, self.progress, resume=resume))

    def _promote(self, end: End, pushed: Sequence[reports.Pushed], commit: OpenCommit) -> None:
        """Make the steps of the probe at whose end the group is the first of the commit."""
        option = commit.decision.values.contender
        self.progress.promote((each.result for each in pushed), seconds=end.seconds, option=option)
        for each in pushed:
            commit.measured.add(each.result)
            self._keep(each, commit)

    def train_commit(self, commit: OpenCommit) -> Course:
        """Train the steps that stay, evaluating and checkpointing on the way; returns how it ended."""
        until = segment_length.within(commit.decision.commit_until, self.spec.budget)
        while not self._ends_at(until):
            if self.wishes.is_pause():
                self._wait_for(self._checkpoint(commit))
                self.wishes.leave()
            self._hold_steady(commit, until)
            self._commit_chunk(commit, until)
            if commit.measured.diverged:
                return "roll_back"  # what follows is of states that stay
            is_evaluated = self.progress.step % self.spec.objective.every == 0
            if is_evaluated:
                self.evaluate()
            if is_evaluated or commit.measured.num_steps >= self._next_look(commit, until):
                course = self._look(commit)
                if course != "go_on":
                    return course
            is_due = self.seconds() - self._saved_s >= self.spec.checkpoint.every_seconds
            if is_evaluated and self._is_new_best():
                self._keep_best(commit)
            elif is_due and self.sink.is_clear():  # while the API is silent nobody would know of another
                self._known = self.keeper.saved[-1:]
                self.sink.report(self._checkpoint(commit))
        return self._course_at_end(commit)

    def _is_new_best(self) -> bool:
        """Return whether what was just evaluated is worth a checkpoint; a budget without seconds reads no clock."""
        if self.spec.checkpoint.export == "last":
            return False
        since = self.seconds() - self._saved_s
        is_cheap = self.spec.budget.seconds is None or since >= BEST_SPACING * self._save_took_s
        return is_cheap and self.progress.is_new_best(fraction_spent(self.spec.budget, self.spent()))

    def _keep_best(self, commit: OpenCommit) -> None:
        """Write a checkpoint of a new best, and wait until it is stored."""
        self.progress.best_at = fraction_spent(self.spec.budget, self.spent())
        self._known += self.keeper.saved[-1:]  # until the API knows of a later one
        self._wait_for(self._checkpoint(commit, is_new_best=True))
        if self.sink.is_clear():
            self._known = []

    def _next_look(self, commit: OpenCommit, until: Allowance) -> int:
        """Return after how many steps of the commit the strategy looks at it again; without seconds, by no clock."""
        num_done = commit.measured.num_steps
        return commit.looked + segment_length.look_steps(until, self.spent(), self.cost, num_done=num_done)

    def _look(self, commit: OpenCommit) -> Course:
        commit.looked = commit.measured.num_steps
        return self.strategy.watch(commit.measured.observation(None, self.spent()))

    def _course_at_end(self, commit: OpenCommit) -> Course:
        """Return whether a commit that came to its end stays; where no budget is left, the better state does."""
        if not commit.measured.num_steps or self._look(commit) != "roll_back":
            return "end"
        return "end" if self.is_over() and self._is_better_than_start() else "roll_back"

    def _is_better_than_start(self) -> bool:
        """Return whether the commit's end has the lower validation loss; the group is left there."""
        self.group.snapshot(BEST)
        end = self._evaluation()
        self.group.restore(STAGE)
        start = self._evaluation()
        self.group.restore(BEST)
        return loss_of(end) < loss_of(start)

    def _hold_steady(self, commit: OpenCommit, until: Allowance) -> None:
        """Keep the last state that does not depend on the budget's end; an extended job goes on from there."""
        last = segment_length.after(self._next_chunk(commit, until) - 1, self.spent(), self.cost)
        if not self.progress.steady and self.strategy.anneals(last):
            held = self._checkpoint(commit, is_steady=True)
            self._wait_for(held)
            self.progress.steady = (held.resume["checkpoint"], self._stage.checkpoint)

    def _next_chunk(self, commit: OpenCommit, until: Allowance) -> int:
        every = self.spec.objective.every
        most = every - self.progress.step % every
        if self.spec.budget.seconds is not None:  # else a push is short enough
            most = min(most, max(1, self._next_look(commit, until) - commit.measured.num_steps))
        return segment_length.next_chunk(until, self.spent(), self.cost, most=most)

    def _commit_chunk(self, commit: OpenCommit, until: Allowance) -> None:
        num_steps = self._next_chunk(commit, until)
        start, started = self.strategy.values(self.spent()), self.seconds()
        end = self.strategy.values(
            segment_length.after(num_steps - 1, self.spent(), self.cost)
        )  # what its last step uses
        segment = segment_length.segment(start, end, num_steps)
        self.sink.report()  # hears a cancel
        result = self.group.run(segment)
        commit.measured.add(result)
        self.progress.charge(result, is_probe=False, option=segment.contender)
        self.cost = segment_length.cost_of(result) or self.cost
        if not result.diverged:
            self._keep(reports.Pushed(segment, result, started_s=started, bytes_sent=self.progress.bytes), commit)

    def _keep(self, pushed: reports.Pushed, commit: OpenCommit) -> None:
        self.progress.step = pushed.result.first_step + len(pushed.result.losses)
        self.progress.schedule_segment(pushed.segment, pushed.result, commit.decision.reason)
        self.sink.report(*reports.committed(self.trial_id, pushed), self._bill_so_far())

    def close_stage(self, commit: OpenCommit, course: Course) -> None:
        """Tell the strategy, keep the stage or take it back, as `course` says, and wait until that is stored."""
        measured, is_kept = commit.measured, course == "end"
        ended = measured.observation(None, self.spent()).model_copy(update={"rolled_back": not is_kept})
        self.strategy.tell(ended)
        if measured.diverged:
            self.diverged_values = commit.decision.values
        if not is_kept:
            self.cost = self.cost if self.is_over() else None
            self.group.restore(STAGE)
            self.progress.rewind_to(self._stage.progress, num_steps=measured.num_steps)
        resume = self._save(None)
        self._wait_for(reports.closed(self.trial_id, commit, ended, self.progress, resume=resume))
        self._known = []

    def _wait_for(self, record: AnyRecord) -> None:
        """Report `record` and wait until it is stored; a silent API is not on the clock."""
        with self.clock.held():
            self.sink.flush(record)

    # -- acts -----------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Evaluate the committed line, on the clock."""
        evaluation = self._evaluation()
        self.progress.note_evaluation(reports.finite(evaluation.loss))
        self.sink.report(*reports.evaluated(self.trial_id, evaluation, self.progress.step, self.seconds()))

    def _evaluate_start(self) -> None:
        self.evaluate()
        self.progress.note_checkpoint(self._stage.checkpoint)

    def _evaluation(self) -> Evaluation:
        started = self.seconds()
        evaluation = self.group.evaluate()
        self.progress.charge_bytes(evaluation)
        self.progress.charge_seconds(seconds_evaluation=self.seconds() - started)
        return evaluation

    def _bill_so_far(self) -> Billed:
        self._bill_lanes()
        now = {"seconds_training": self.seconds(), "steps": self.progress.step}
        return Billed(trial_id=self.trial_id, bill=self.progress.bill.model_copy(update=now))

    def _bill_lanes(self) -> None:
        now = recovered(self.groups)
        self.progress.charge_recovery(self._billed, now)
        self._billed = now
        if self.insurance is not None:
            self.progress.note_insurance(self.insurance.line.progress)

    def _checkpoint(self, commit: OpenCommit, *, is_steady: bool = False, is_new_best: bool = False) -> Checkpointed:
        resume = self._save(commit, is_timed=not is_new_best)
        return reports.checkpointed(self.trial_id, commit, self.progress, resume=resume, is_steady=is_steady)

    def _save(self, commit: OpenCommit | None, *, is_timed: bool = False) -> dict[str, Any]:
        """Write a checkpoint; return what a later attempt needs to go on from it. `commit` is the open one.

        `is_timed`: a clock has said when; what is exported from a budget without seconds depends on none.
        """
        started = self.seconds()
        url = self.keeper.save(self.progress.step, needed=self.needed())
        if not is_timed or self.spec.budget.seconds is not None or self.spec.checkpoint.export == "last":
            self.progress.note_checkpoint(url)
        self._saved_s = self.seconds()
        self._save_took_s = self._saved_s - started
        self.progress.charge_seconds(seconds_checkpoint=self._saved_s - started)
        self.progress.stop_clock(self._saved_s)
        self._bill_lanes()
        if commit is None:
            self._stage = StageStart(checkpoint=url, progress=self.progress)
        return self._resume(url, commit=commit)

    def _resume(
        self, checkpoint: str, *, commit: OpenCommit | None = None, search: OpenSearch | None = None
    ) -> dict[str, Any]:
        return Resume(
            fingerprint=self.group.fingerprint,
            checkpoint=checkpoint,
            checkpoints=self.keeper.saved,
            stage=self._stage,
            num_workers=self.group.num_workers,
            journal=dict(self.strategy.state_dict()),
            progress=self.progress,
            cost=self.cost,
            diverged_values=self.diverged_values,
            open_commit=commit,
            search=search,
            insurance=self.insurance.resume() if self.insurance else None,
        ).model_dump(mode="json")
