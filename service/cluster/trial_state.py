"""The state of one line of training: its workers, its clock, and everything that a resume restores."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from search.budget.link import StepCost
from search.budget.spending import fraction_spent
from search.loop import pacing
from search.loop.endings import Failure
from search.protocol import Strategy
from search.space import SearchSpace
from search.types import Allowance, Course, Spent
from service.cluster import learned_schedule, reports
from service.cluster.checkpoints import Keeper
from service.cluster.clock import TrainingClock
from service.cluster.insurance import InsuranceSink
from service.cluster.lanes import Lane, recovered, require_equal
from service.cluster.measured import OpenCommit, Pushed
from service.cluster.objective import judge_by
from service.cluster.reporter import Stopped
from service.cluster.resume import StageStart
from service.cluster.sink import Sink
from service.cluster.trial_ledger import TrialLedger
from service.job.parts import LOSS, TrialSpec
from service.wire.records import AnyRecord, Billed, Checkpointed, Control, RungReached
from trainers.segment import Evaluation
from trainers.training.group import Group, Recovery


class UserRequests:
    """The user's requests. A stop ends the run at the next point where it can end well, a pause by `Stopped`."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def is_stop(self) -> bool:
        """Return whether the run should end as if its budget were spent."""
        return self._sink.asked() is Control.STOP

    def is_pause(self) -> bool:
        """Return whether the run should write a checkpoint and end."""
        return self._sink.asked() is Control.PAUSE

    def check(self) -> None:
        """Raise what must end a search at once. After a pause, the search continues from the checkpoint before it."""
        self._sink.report()
        if self.is_pause():
            self.leave()

    def leave(self) -> None:
        """End the run by `Stopped`, once the API knows of its last checkpoint."""
        raise Stopped(Control.PAUSE, "told to pause")


class Recorder:
    """Reports the events of one line, with a complete bill: all lanes, and the second line."""

    def __init__(self, trial_id: str, sink: Sink, groups: Sequence[Group], clock: TrainingClock) -> None:
        self.trial_id, self.sink = trial_id, sink
        self._groups, self._clock = groups, clock
        self.num_held = sum(group.num_workers for group in groups)  # for the whole attempt, even while lanes idle
        self._billed = Recovery()  # the part of the groups' recovery already on the bill

    def report(self, *records: AnyRecord) -> None:
        """Report `records`. Raises what must end the run, such as a cancel."""
        self.sink.report(*records)

    def wait_for(self, record: AnyRecord) -> None:
        """Report `record` and wait until it is stored. The clock stands still meanwhile."""
        with self._clock.held():
            self.sink.flush(record)

    def complete(self, progress: TrialLedger, second: "SecondLine | None") -> None:
        """Add to the bill the lanes' cost of lost workers, and the second line's cost."""
        now = recovered(self._groups)
        progress.charge_recovery(self._billed, now)
        self._billed = now
        if second is not None:
            progress.note_insurance(second.state.progress)

    def bill(self, progress: TrialLedger, second: "SecondLine | None") -> Billed:
        """Return the record of the bill so far."""
        self.complete(progress, second)
        return Billed(trial_id=self.trial_id, bill=progress.billed_at(self._clock.seconds(), num_held=self.num_held))


class TrialState:
    """A line of training. Mutable: the stage loop and the functions that it calls change it."""

    strategy: Strategy
    space: SearchSpace
    stage: StageStart

    def __init__(
        self, spec: TrialSpec, groups: Sequence[Group], sink: Sink, *, trial_id: str, storage_url: str
    ) -> None:
        require_equal(groups)
        self.judge = judge_by(spec.objective, groups[0].built.metrics)
        self.spec, self.trial_id, self.storage_url = spec, trial_id, f"{storage_url}/{trial_id}"
        self.group, self.groups, self.lanes = groups[0], groups, [Lane(group) for group in groups]
        self.keeper = Keeper(self.group, self.storage_url, keep=spec.checkpoint.keep)
        self.clock = TrainingClock(self.group)
        self.recorder = Recorder(trial_id, sink, groups, self.clock)
        self.requests = UserRequests(sink)
        self.progress = TrialLedger()
        self.cost: StepCost | None = None  # of a step with the values in use; None: unknown yet
        self.first: StageStart | None = None  # where a run starts over; None: it never does
        self.failures: list[Failure] = []  # the commits that diverged since one was kept
        self.second: SecondLine | None = None
        self.closed: dict[str, Any] | None = None  # what resumes from the stage that was closed last
        self.known: list[str] = []  # the checkpoints that the API may still resume from
        self.saved_s, self.save_took_s = 0.0, 0.0
        self.under_way: Checkpointed | None = None  # reported once its checkpoint is complete
        # A record of two lines names a checkpoint of each, and both must exist when it is made.
        self.is_alone = spec.lanes.after != "insurance" and not isinstance(sink, InsuranceSink)

    # -- what is spent ----------------------------------------------------------------------------------------

    def seconds(self) -> float:
        """Return the training clock."""
        return self.clock.seconds()

    def spent(self) -> Spent:
        """Return the run's totals."""
        return Spent(steps=self.progress.steps, bytes=self.progress.bytes, seconds=self.seconds())

    def is_over(self) -> bool:
        """Return whether the budget is spent, or the run ends before that."""
        return self.ends_at(pacing.within(Allowance(), self.spec.budget))

    def is_stopped(self) -> bool:
        """Return whether the run ends only because its user asked to stop it."""
        return not self.ends_by_itself(pacing.within(Allowance(), self.spec.budget))

    def ends_at(self, until: Allowance) -> bool:
        """Return whether the totals `until` are reached, or the run ends before its budget is spent."""
        return self.requests.is_stop() or self.ends_by_itself(until)

    def ends_by_itself(self, until: Allowance) -> bool:
        """Return whether the totals `until` are reached, a line is at the target, or patience has run out."""
        lines = [self] if self.second is None else [self, self.second.state]
        is_at_target = any(line.progress.at_target for line in lines)
        return is_at_target or self.is_stale() or pacing.is_reached(until, self.spent(), self.cost)

    def fails_before_any_update(self) -> bool:
        """Return whether a commit diverged in the run's first step, on which no learning rate has an effect yet."""
        is_at_once = self.progress.diverged_step == 0 and len(self.failures) > 0
        return is_at_once and self.failures[-1].values.option is None

    def is_stale(self) -> bool:
        """Return whether as many evaluations in a row as the job's patience allows brought no improvement."""
        patience = self.spec.objective.patience
        return patience is not None and self.progress.num_stale >= patience

    # -- segments and evaluations -----------------------------------------------------------------------------

    def keep_segment(self, commit: OpenCommit, pushed: Pushed) -> None:
        """Add a trained segment to the commit: to the schedule, the bill and the reports."""
        self.progress.commit(pushed.result)
        decision = commit.decision
        people = dict.fromkeys(steer.by for steer in decision.steers)
        learned_schedule.append(
            self.progress.schedule,
            pushed.segment,
            pushed.result,
            decision.reason,
            tuple(people),
            optimizer=decision.values.optimizer,
        )
        bill = self.recorder.bill(self.progress, self.second)
        self.recorder.report(*reports.committed(self.trial_id, pushed), bill)

    def evaluate(self, *, averaged: bool = False) -> Evaluation:
        """Evaluate the state in memory, its weights or their average. The time and bytes are charged."""
        started = self.seconds()
        evaluation = self.evaluate_off_the_clock(averaged=averaged)
        self.progress.charge_seconds(seconds_evaluation=self.seconds() - started)
        return evaluation

    def evaluate_off_the_clock(self, *, averaged: bool = False) -> Evaluation:
        """Evaluate, and charge the bytes alone: for when the training clock has not started yet, or has stopped."""
        evaluation = self.group.evaluate(averaged=averaged)
        self.progress.charge_bytes(evaluation)
        return evaluation

    def kept_of(self, end: Evaluation, evaluate: Callable[..., Evaluation]) -> Evaluation:
        """Return the evaluation of the state in memory as it is exported: `end`, of its weights, or of their average.

        `evaluate` is one of the two methods above.
        """
        export = self.spec.checkpoint.export
        if export == "last" or not end.has_average:
            return end
        average = evaluate(averaged=True)
        return average if export == "average" else min(end, average, key=self.judge.rank)

    def evaluate_line(self) -> None:
        """Evaluate the committed line and report the result.

        If its weights set no record, their average may: then it is evaluated too, and the better of both counts. So
        it is at a rung, where samples of a sweep are compared.
        """
        export, min_delta = self.spec.checkpoint.export, self.spec.objective.min_delta
        found = self.evaluate(averaged=export == "average")
        is_record = self.progress.is_record(self.judge.score(found), min_delta=min_delta)
        is_enough = is_record and not self._is_at_rung()
        if export == "best" and found.has_average and not is_enough:
            found = min(found, self.evaluate(averaged=True), key=self.judge.rank)
        self._note(found)
        self.progress.validation = self.progress.validation.after(
            found.loss, self.progress.recent, self.progress.step, is_record=self.progress.num_stale == 0
        )

    def _note(self, evaluation: Evaluation) -> None:
        score, min_delta = self.judge.score(evaluation), self.spec.objective.min_delta
        is_at_target, averaged = self.judge.is_at_target(score), evaluation.averaged
        self.progress.note_evaluation(score, min_delta=min_delta, at_target=is_at_target, averaged=averaged)
        self.recorder.report(*reports.evaluated(self.trial_id, evaluation, self.progress.step, self.seconds()))
        self._tell_rungs(evaluation)

    def _tell_rungs(self, evaluation: Evaluation) -> None:
        """Report the rungs that this evaluation has reached, and wait for the decision whether the run goes on."""
        while self._is_at_rung():
            metric = self.spec.objective.metric
            reached = RungReached(
                trial_id=self.trial_id,
                rung=self.progress.num_rungs,
                step=self.progress.step,
                seconds=self.seconds(),
                bytes_sent=self.progress.bytes,
                value=reports.finite(evaluation.loss if metric == LOSS else evaluation.metrics[metric]),
            )
            self.progress.num_rungs += 1
            self.recorder.wait_for(reached)

    def _is_at_rung(self) -> bool:
        """Return whether the run has reached a rung that it has not told of."""
        told, rungs = self.progress.num_rungs, self.spec.rungs
        return told < len(rungs) and rungs[told] <= fraction_spent(self.spec.budget, self.spent())

    def note_start(self, evaluation: Evaluation) -> None:
        """Record and report an evaluation of the stage's checkpoint."""
        self._note(evaluation)
        self.progress.note_checkpoint(self.stage.checkpoint)


class SecondLine:
    """The second line, and the thread that trains it to its end. `sink` is its own."""

    def __init__(self, state: TrialState, sink: InsuranceSink, train: Callable[[], Course]) -> None:
        self.state, self._sink = state, sink
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="insurance")
        self._ending = self._pool.submit(train)

    def resume(self) -> dict[str, Any]:
        """Return what a later attempt needs to resume it. Raises the error of its thread, if any."""
        if self._ending.done():
            self._ending.result()
        return self._sink.take()

    def has_more(self) -> bool:
        """Return whether it has written a checkpoint that no record names yet."""
        return self._sink.has_more()

    def is_over(self, *, within_s: float) -> bool:
        """Wait for at most `within_s` seconds, and return whether the line has ended."""
        return bool(wait([self._ending], timeout=within_s).done)

    def wait(self) -> Course:
        """Wait until the line has spent its budget, and return how it ended."""
        return self._ending.result()  # no timeout here: every call to its group has one

    def close(self) -> None:
        """End the thread, after the current push at the latest."""
        self._sink.end()
        self._pool.shutdown()
