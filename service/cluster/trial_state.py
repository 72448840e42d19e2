"""The state of one line of training: its workers, its clock, and everything that a resume holds."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from search.budget.link import StepCost
from search.budget.spending import fraction_spent
from search.protocol import Strategy
from search.space import SearchSpace
from search.types import Allowance, Course, Spent, Values
from service.cluster import reports, segment_length
from service.cluster.checkpoints import Keeper
from service.cluster.clock import TrainingClock
from service.cluster.insurance import InsuranceSink
from service.cluster.lanes import Lane, recovered, require_equal
from service.cluster.measured import OpenCommit
from service.cluster.objective import judge_by
from service.cluster.reporter import Stopped
from service.cluster.reports import Sink
from service.cluster.resume import OpenSearch, Resume, StageStart
from service.cluster.trial_ledger import Progress
from service.job.parts import LOSS, TrialSpec
from service.wire.records import AnyRecord, Billed, Checkpointed, Control, RungReached
from trainers.segment import Evaluation
from trainers.training.group import Group, Recovery

#: Longest that a checkpoint may take to its storage; each of its requests has a timeout of its own.
UPLOAD_S = 3600.0


class UserRequests:
    """A stop ends what runs at the next point where it can end well; a pause ends it with `Stopped`."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def is_stop(self) -> bool:
        """Return whether the run is to end as if its budget were spent."""
        return self._sink.asked() is Control.STOP

    def is_pause(self) -> bool:
        """Return whether the run is to leave a checkpoint and end."""
        return self._sink.asked() is Control.PAUSE

    def check(self) -> None:
        """Raise what must end a search at once: a paused one is made anew, from the checkpoint before it."""
        self._sink.report()
        if self.is_pause():
            self.leave()

    def leave(self) -> None:
        """End the run, whose last checkpoint is known."""
        raise Stopped(Control.PAUSE, "told to pause")


class Recorder:
    """Reports what happens on one line, with a bill that leaves out nothing: every lane, and the line beside it."""

    def __init__(self, trial_id: str, sink: Sink, groups: Sequence[Group], clock: TrainingClock) -> None:
        self.trial_id, self.sink = trial_id, sink
        self._groups, self._clock = groups, clock
        self.num_held = sum(group.num_workers for group in groups)  # for the whole attempt, whoever trains
        self._billed = Recovery()  # what of the groups' recovery is on the bill

    def report(self, *records: AnyRecord) -> None:
        """Report `records`. Raises what must end the run, such as a cancel."""
        self.sink.report(*records)

    def wait_for(self, record: AnyRecord) -> None:
        """Report `record` and wait until it is stored; a silent API is not on the clock."""
        with self._clock.held():
            self.sink.flush(record)

    def complete(self, progress: Progress, second: "SecondLine | None") -> None:
        """Put on the bill what lanes have spent on lost workers, and what the line beside this one has."""
        now = recovered(self._groups)
        progress.charge_recovery(self._billed, now)
        self._billed = now
        if second is not None:
            progress.note_insurance(second.state.progress)

    def bill(self, progress: Progress, second: "SecondLine | None") -> Billed:
        """Return the record of the bill so far."""
        self.complete(progress, second)
        return Billed(trial_id=self.trial_id, bill=progress.billed_at(self._clock.seconds(), num_held=self.num_held))


class TrialState:
    """A line of training. Mutable: the stage loop, and what it calls, act on it."""

    strategy: Strategy
    space: SearchSpace
    stage: StageStart

    def __init__(
        self, spec: TrialSpec, groups: Sequence[Group], sink: Sink, *, trial_id: str, storage_url: str
    ) -> None:
        require_equal(groups)
        self.judge = judge_by(spec.objective, groups[0].metrics)
        self.spec, self.trial_id, self.storage_url = spec, trial_id, f"{storage_url}/{trial_id}"
        self.group, self.groups, self.lanes = groups[0], groups, [Lane(group) for group in groups]
        self.keeper = Keeper(self.group, self.storage_url, keep=spec.checkpoint.keep)
        self.clock = TrainingClock(self.group)
        self.recorder = Recorder(trial_id, sink, groups, self.clock)
        self.requests = UserRequests(sink)
        self.progress = Progress()
        self.cost: StepCost | None = None  # of a step with the values in force; None: not known yet
        self.diverged_values: Values | None = None
        self.second: SecondLine | None = None
        self.known: list[str] = []  # checkpoints named by what the API knew of when the last one was reported
        self.saved_s, self.save_took_s = 0.0, 0.0
        self.under_way: Checkpointed | None = None  # told once its checkpoint is complete
        # A record of two lines holds a checkpoint of each, which have to be there when it is made.
        self._is_alone = spec.lanes.after != "insurance" and not isinstance(sink, InsuranceSink)

    # -- what is spent ----------------------------------------------------------------------------------------

    def seconds(self) -> float:
        """Return the training clock."""
        return self.clock.seconds()

    def spent(self) -> Spent:
        """Return the run's totals."""
        return Spent(steps=self.progress.steps, bytes=self.progress.bytes, seconds=self.seconds())

    def is_over(self) -> bool:
        """Return whether the budget is spent, or the run ends before that."""
        return self.ends_at(segment_length.within(Allowance(), self.spec.budget))

    def is_stopped(self) -> bool:
        """Return whether the run ends for the reason alone that somebody wants what there is."""
        return not self.ends_by_itself(segment_length.within(Allowance(), self.spec.budget))

    def ends_at(self, until: Allowance) -> bool:
        """Return whether these totals are reached, or the run ends before its budget does."""
        return self.requests.is_stop() or self.ends_by_itself(until)

    def ends_by_itself(self, until: Allowance) -> bool:
        """Return whether these totals are reached, a line is at the target, or patience is at its end."""
        lines = [self] if self.second is None else [self, self.second.state]
        is_at_target = any(line.progress.at_target for line in lines)
        return is_at_target or self.is_stale() or segment_length.is_reached(until, self.spent(), self.cost)

    def fails_before_any_update(self) -> bool:
        """Return whether a commit diverged in the run's first step, of which no learning rate has an effect yet."""
        values = self.diverged_values
        return self.progress.diverged_step == 0 and values is not None and values.option is None

    def is_stale(self) -> bool:
        """Return whether as many evaluations in a row were no better as the job has patience for."""
        patience = self.spec.objective.patience
        return patience is not None and self.progress.num_stale >= patience

    # -- evaluations ------------------------------------------------------------------------------------------

    def evaluate(self) -> Evaluation:
        """Evaluate the state in memory, on the clock and on the bill."""
        started = self.seconds()
        evaluation = self.group.evaluate()
        self.progress.charge_bytes(evaluation)
        self.progress.charge_seconds(seconds_evaluation=self.seconds() - started)
        return evaluation

    def evaluate_line(self) -> None:
        """Evaluate the committed line, and report it."""
        self._note(self.evaluate())

    def _note(self, evaluation: Evaluation) -> None:
        score, min_delta = self.judge.score(evaluation), self.spec.objective.min_delta
        self.progress.note_evaluation(score, min_delta=min_delta, at_target=self.judge.is_at_target(score))
        self.recorder.report(*reports.evaluated(self.trial_id, evaluation, self.progress.step, self.seconds()))
        self._tell_rungs(evaluation)

    def _tell_rungs(self, evaluation: Evaluation) -> None:
        """Tell of the rungs behind this evaluation, and wait for the word whether the run goes on."""
        share = fraction_spent(self.spec.budget, self.spent())
        while self.progress.num_rungs < len(self.spec.rungs) and self.spec.rungs[self.progress.num_rungs] <= share:
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

    def note_start(self, evaluation: Evaluation) -> None:
        """Note and report an evaluation of the stage's checkpoint."""
        self._note(evaluation)
        self.progress.note_checkpoint(self.stage.checkpoint)

    # -- checkpoints ------------------------------------------------------------------------------------------

    def needed(self) -> set[str]:
        """Return the checkpoints that must stay on storage, whatever their age."""
        beside = self.second.state.needed() if self.second else set()
        held = (lane.holds for lane in self.lanes if lane.holds)
        best = (each.best.checkpoint for each in (self.progress, self.stage.progress) if each.best)
        return {self.stage.checkpoint, *self.known, *self.progress.steady, *best, *beside, *held}

    def named(self) -> list[str]:
        """Return the last checkpoint, and the best one by its record."""
        best = self.progress.best
        return [*self.keeper.saved[-1:], *([best.checkpoint] if best else [])]

    def save(self, commit: OpenCommit | None, *, is_timed: bool = False, beside: bool = False) -> dict[str, Any]:
        """Write a checkpoint; return what a later attempt needs to go on from it. `commit` is the open one.

        `is_timed`: a clock has said when; what is exported from a budget without seconds depends on none. To copy the
        state is on the clock, to write the copy is not. With `beside` that is only begun.
        """
        self.settle()
        started = self.seconds()
        url = self.keeper.save(self.progress.step, needed=self.needed(), beside=True)
        if not (beside and self._is_alone):
            self._wait_for_upload()
        if not is_timed or self.spec.budget.seconds is not None or self.spec.checkpoint.export == "last":
            self.progress.note_checkpoint(url)
        self.saved_s = self.seconds()
        self.save_took_s = self.saved_s - started
        self.progress.charge_seconds(seconds_checkpoint=self.saved_s - started)
        self.progress.stop_clock(self.saved_s, num_held=self.recorder.num_held)
        self.recorder.complete(self.progress, self.second)
        if commit is None:
            self.stage = StageStart(checkpoint=url, progress=self.progress)
        return self.resume(url, commit=commit)

    def keep(self, commit: OpenCommit, *, is_new_best: bool = False) -> None:
        """Write a checkpoint within `commit` while training goes on; it is reported once it is complete."""
        self.under_way = self.checkpointed(commit, is_new_best=is_new_best, beside=True)
        self.settle(wait=False)

    def settle(self, *, wait: bool = True) -> None:
        """Report the checkpoint that is being written once it is complete; wait for that, unless told not to."""
        if self.under_way is None or not (wait or self.keeper.is_saved()):
            return
        self._wait_for_upload()
        record, self.under_way = self.under_way, None
        if wait:
            self.recorder.wait_for(record)
        else:
            self.recorder.report(record)

    def _wait_for_upload(self) -> None:
        deadline = time.monotonic() + UPLOAD_S
        with self.clock.held():
            while not self.keeper.is_saved(within_s=1.0):
                self.recorder.report()  # hears a cancel
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"a checkpoint was not on storage within {UPLOAD_S:g} s: see that it is fast enough"
                    )

    def checkpointed(
        self, commit: OpenCommit, *, is_steady: bool = False, is_new_best: bool = False, beside: bool = False
    ) -> Checkpointed:
        """Write a checkpoint within `commit`, and return its record."""
        resume = self.save(commit, is_timed=not is_new_best, beside=beside)
        return Checkpointed(
            trial_id=self.trial_id,
            stage=commit.decision.stage,
            step=self.progress.step,
            bill=self.progress.bill,
            resume=resume,
            steady=is_steady,
        )

    def report_start(self, commit: OpenCommit) -> None:
        """Report the stage's checkpoint as that of `commit`, which has no step yet; an older one may go then."""
        resume = self.resume(self.stage.checkpoint, commit=commit)
        stage, step, bill = commit.decision.stage, self.progress.step, self.progress.bill
        self.recorder.wait_for(
            Checkpointed(trial_id=self.trial_id, stage=stage, step=step, bill=bill, resume=resume, steady=False)
        )

    def resume(
        self, checkpoint: str, *, commit: OpenCommit | None = None, search: OpenSearch | None = None
    ) -> dict[str, Any]:
        """Return what a later attempt needs to go on from `checkpoint`, within `commit` or `search`, as JSON."""
        return Resume(
            fingerprint=self.group.fingerprint,
            checkpoint=checkpoint,
            checkpoints=self.keeper.saved,
            stage=self.stage,
            num_workers=self.group.num_workers,
            journal=dict(self.strategy.state_dict()),
            progress=self.progress,
            cost=self.cost,
            diverged_values=self.diverged_values,
            open_commit=commit,
            search=search,
            insurance=self.second.resume() if self.second else None,
        ).as_json()


class SecondLine:
    """A line beside the main one, and the thread that trains it to its end; `sink` is its own."""

    def __init__(self, state: TrialState, sink: InsuranceSink, train: Callable[[], Course]) -> None:
        self.state, self._sink = state, sink
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="insurance")
        self._ending = self._pool.submit(train)

    def resume(self) -> dict[str, Any]:
        """Return what a later attempt needs to go on with it; raises what has ended its thread, if anything has."""
        if self._ending.done():
            self._ending.result()
        return self._sink.take()

    def wait(self) -> Course:
        """Wait for the line's end, which comes with its budget, and return how it ended."""
        return self._ending.result()  # no timeout: every call to its group has one

    def close(self) -> None:
        """End the thread, at the latest when the push under way has ended."""
        self._sink.end()
        self._pool.shutdown()
