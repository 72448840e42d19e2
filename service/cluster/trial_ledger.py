"""The ledger of a training run: totals, bill, schedule. One mutable object, saved with every checkpoint."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from search.types import Piece
from service.cluster import learned_schedule
from service.cluster.measured import bytes_per_worker
from service.wire.records import Bill, OptionBill, ScheduleEntry
from trainers.segment import Evaluation, SegmentResult, Written
from trainers.training.group import Recovery


class Best(BaseModel):
    """The checkpoint behind the best evaluation by the objective. A lower score is better."""

    model_config = ConfigDict(frozen=True)

    checkpoint: str
    score: float = Field(validation_alias=AliasChoices("score", "loss"))  # `loss`: an earlier release wrote it
    step: int | None = Field(None, description="committed steps behind it; None: an earlier release has not said")
    schedule: tuple[ScheduleEntry, ...] | None = Field(
        None, description="that led there, where its steps were rolled back; None: the beginning of the run's"
    )


#: A score that is lower than the best one by less than this share is not worth a checkpoint of its own ...
BEST_GAIN = 0.002
#: ... nor is one before training took so many times as long as a checkpoint does, or where seconds do not count,
#: before this share of the budget was spent since the last of them.
BEST_SPACING, BEST_SHARE = 50.0, 0.05
#: One that is better by more than the first share is worth it earlier, in proportion: such gains are few. Where seconds
#: do not count, nobody knows how long a checkpoint takes, so the second part of the usual spacing always lies between.
LARGE_GAIN, LEAST_CLOCKLESS_PART = 0.02, 0.2


class Progress(BaseModel):
    """The progress of a run. JSON both ways."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    step: int = Field(0, description="committed steps")
    steps: int = Field(0, description="all steps, probes included")
    bytes: int = Field(0, description="sent by one worker, probes included")
    seconds: float = Field(0.0, description="training clock when this was last written down")
    bill: Bill = Bill()
    schedule: list[ScheduleEntry] = Field(default_factory=list)
    piece: Piece | None = Field(None, description="straight piece of the rate's course that the last steps were of")
    score: float | None = Field(
        None,
        validation_alias=AliasChoices("score", "validation_loss"),
        description="of the last evaluation by the objective, lower is better; None: it was not finite",
    )
    evaluated_step: int | None = Field(None, description="committed steps behind that evaluation")
    steps_to_meeting: int = Field(0, description="until workers that train apart have equal parameters")
    evaluation_due: bool = Field(False, description="it waits for their next meeting, where it costs no average")
    best: Best | None = None
    record: float | None = Field(None, description="the score that an evaluation has to be better than")
    num_stale: int = Field(0, description="evaluations in a row that were not, of steps taken back too")
    at_target: bool = Field(False, description="an evaluation was as good as the job asks for, which ends the run")
    num_rungs: int = Field(0, description="of the sweep's that the run has told of")
    diverged_step: int | None = Field(None, description="the step that the last commit diverged at, if one has")
    best_at: float = Field(0.0, description="share of the budget that was spent when a new best was last written")
    steady: tuple[str, ...] = Field(
        (), description="checkpoints that a larger budget goes on from: of the last state that none has told on"
    )

    def charge(
        self, result: SegmentResult, *, is_probe: bool, option: str | None = None, num_workers: int | None = None
    ) -> None:
        """Put a segment on the bill; `option`: the exchange it was by, where several compete.

        `num_workers` were there for it: as many as sent, unless each trained a probe alone.
        """
        num_steps, sent = len(result.losses), bytes_per_worker(result.bytes_sent)
        self.steps += num_steps
        self.charge_bytes(result, num_workers=num_workers)
        self._bill(
            bytes_search=self.bill.bytes_search + sent * is_probe,
            bytes_dense=self.bill.bytes_dense + result.bytes_dense,
            steps_search=self.bill.steps_search + num_steps * is_probe,
            saved_bytes=max(self.bill.saved_bytes, result.saved_bytes),
        )
        if result.times is not None:
            self._bill(steps_timed=self.bill.steps_timed + num_steps)
            self.charge_seconds(**{f"seconds_{name}": value for name, value in result.times})
        self._bill_workers(result.steps_by_workers or {num_workers or len(result.bytes_sent): num_steps})
        took = sum(result.step_seconds)
        self._bill_option(option, steps=num_steps, steps_search=num_steps * is_probe, bytes_sent=sent, seconds=took)

    def promote(self, *, num_steps: int, num_bytes: int, seconds: float, option: str | None = None) -> None:
        """Turn what a probe was billed into a commit's.

        It may have been trained again since, by other workers, which sent something else.
        """
        self.charge_seconds(seconds_search=-seconds)
        self._bill(bytes_search=self.bill.bytes_search - num_bytes, steps_search=self.bill.steps_search - num_steps)
        self._bill_option(option, steps_search=-num_steps)

    def charge_bytes(self, result: SegmentResult | Evaluation | Written, *, num_workers: int | None = None) -> None:
        """Add what the busiest rank sent, and what all of them did."""
        before = self.bill.bytes_of_all
        known = self.bytes * (num_workers or len(result.bytes_sent)) if before is None else before
        of_all = known + sum(sum(rank.values()) for rank in result.bytes_sent)
        self.bytes += bytes_per_worker(result.bytes_sent)
        purposes = dict(self.bill.bytes_by_purpose)
        for purpose, count in max(result.bytes_sent, key=lambda rank: sum(rank.values())).items():
            purposes[purpose] = purposes.get(purpose, 0) + count
        within = self.bill.bytes_within_nodes + bytes_per_worker(result.bytes_within)
        self._bill(bytes_sent=self.bytes, bytes_of_all=of_all, bytes_by_purpose=purposes, bytes_within_nodes=within)

    def charge_seconds(self, **seconds: float) -> None:
        """Add elapsed seconds to lines of the bill, e.g. `charge_seconds(seconds_search=0.4)`."""
        self._bill(**{line: getattr(self.bill, line) + value for line, value in seconds.items()})

    def charge_warm_up(self, result: SegmentResult) -> None:
        """Charge the bytes of the discarded steps before the clock; they are neither steps nor seconds."""
        self.charge(result.model_copy(update={"times": None}), is_probe=False)
        self.steps -= len(result.losses)
        by_workers = result.steps_by_workers or {len(result.bytes_sent): len(result.losses)}
        self._bill_workers({count: -steps for count, steps in by_workers.items()})

    def charge_recovery(self, before: Recovery, now: Recovery) -> None:
        """Add what the group has spent on lost workers between `before` and `now`; no budget counts it."""
        self._bill(
            repairs=self.bill.repairs + now.repairs - before.repairs,
            seconds_recovery=self.bill.seconds_recovery + now.seconds - before.seconds,
            bytes_recovery=self.bill.bytes_recovery + now.bytes - before.bytes,
            absences=self.bill.absences
            | {
                rank: self.bill.absences.get(rank, 0) + missed - before.absences.get(rank, 0)
                for rank, missed in now.absences.items()
            },
        )

    def note_evaluation(self, score: float | None, *, min_delta: float = 0.0, at_target: bool = False) -> None:
        """Remember the score of the present state, None: not finite, and whether it is better by `min_delta`."""
        self.score, self.evaluated_step, self.evaluation_due = score, self.step, False
        self.at_target = at_target
        if score is not None and (self.record is None or score < self.record - min_delta):
            self.record, self.num_stale = score, 0
        else:
            self.num_stale += 1

    def note_checkpoint(self, url: str) -> None:
        """Remember the checkpoint at `url` if its state was evaluated, with a lower score than any before."""
        if self.score is None or self.evaluated_step != self.step:
            return
        if self.best is None or self.score < self.best.score:
            self.best = Best(checkpoint=url, score=self.score, step=self.step)

    @property
    def best_patience(self) -> float:
        """The part of the usual spacing after which the state just evaluated is worth a checkpoint; infinity: never."""
        if self.score is None:
            return math.inf
        if self.best is None:
            return 0.0
        best, unit = self.best.score, abs(self.best.score)
        if self.score >= best - BEST_GAIN * unit:
            return math.inf
        return min(1.0, LARGE_GAIN * unit / (best - self.score))

    def schedule_to(self, best: Best) -> tuple[ScheduleEntry, ...]:
        """Return the schedule that led to the checkpoint `best`, whose step is known."""
        assert best.step is not None
        if best.schedule is not None:
            return best.schedule
        return learned_schedule.up_to(self.schedule, best.step)

    def note_insurance(self, line: "Progress") -> None:
        """Write down what the line beside this one has spent so far; no budget of this one counts it."""
        self._bill(steps_insurance=line.steps, bytes_insurance=line.bytes)

    def rewind_to(self, earlier: "Progress", *, num_steps: int) -> None:
        """Forget the `num_steps` that were trained since `earlier`; what they cost stays on the bill.

        The best checkpoint stays the best, with the schedule that led to it; patience stays as short as it was.
        """
        if self.best is not None and self.best.step is not None and self.best.step > earlier.step:
            self.best = self.best.model_copy(update={"schedule": self.schedule_to(self.best)})
        self.step, self.schedule, self.steady = earlier.step, list(earlier.schedule), earlier.steady
        self.piece = None
        self.score, self.evaluated_step, self.at_target = earlier.score, earlier.evaluated_step, earlier.at_target
        self.steps_to_meeting, self.evaluation_due = earlier.steps_to_meeting, earlier.evaluation_due
        self._bill(steps_taken_back=self.bill.steps_taken_back + num_steps)

    def stop_clock(self, seconds: float, *, num_held: int) -> None:
        """Write the training clock down; the run has held so many workers since this was last done."""
        self.bill = self.billed_at(seconds, num_held=num_held)
        self.seconds = seconds

    def billed_at(self, seconds: float, *, num_held: int) -> Bill:
        """Return the bill as it is when the training clock shows `seconds`."""
        before = self.bill.seconds_of_workers
        known = self.seconds * num_held if before is None else before
        held = known + (seconds - self.seconds) * num_held
        return self.bill.model_copy(
            update={"seconds_training": seconds, "seconds_of_workers": held, "steps": self.step}
        )

    def _bill(self, **lines: Any) -> None:
        self.bill = self.bill.model_copy(update=lines)

    def _bill_workers(self, added: Mapping[int, int]) -> None:
        steps = Counter(self.bill.steps_by_workers)
        steps.update(added)
        self._bill(steps_by_workers={count: total for count, total in steps.items() if total})

    def _bill_option(self, option: str | None, **added: float) -> None:
        if option is None:
            return
        known = self.bill.by_option.get(option, OptionBill())
        total = known.model_copy(update={line: getattr(known, line) + value for line, value in added.items()})
        self._bill(by_option=self.bill.by_option | {option: total})
