"""The ledger of a training run: totals, bill and schedule. One mutable object, saved with every checkpoint."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from search.curves.overfitting import MOST_LOSSES, Validation
from search.types import Piece
from service.cluster import learned_schedule
from service.cluster.measured import bytes_per_worker
from service.wire.records import Bill, OptionBill, ScheduleEntry
from trainers.segment import Evaluation, SegmentResult, Written
from trainers.training.group import Recovery


class Best(BaseModel):
    """The checkpoint with the best evaluation by the objective. A lower score is better."""

    model_config = ConfigDict(frozen=True)

    checkpoint: str
    score: float = Field(validation_alias=AliasChoices("score", "loss"))  # `loss` in earlier releases
    step: int | None = Field(None, description="committed steps behind it; None: an earlier release has not said")
    averaged: bool = Field(False, description="it is the average of the weights there that scored so")
    schedule: tuple[ScheduleEntry, ...] | None = Field(
        None, description="that led there, where its steps were rolled back; None: the beginning of the run's"
    )


#: A new best score is worth a checkpoint only if it is lower than the previous best by more than this share.
BEST_GAIN = 0.002
#: The usual spacing of such checkpoints: training takes this many times as long as a checkpoint. Under a budget
#: without seconds, this share of the budget lies between two of them.
BEST_SPACING, BEST_SHARE = 50.0, 0.05
ROUNDING = 1e-9
#: A gain larger than the first share shortens the spacing in proportion, since such gains are rare. Under a budget
#: without seconds, the time of a checkpoint is unknown, so at least the second number's part of the spacing stays.
LARGE_GAIN, LEAST_CLOCKLESS_PART = 0.02, 0.2


def patience_for(score: float, best: float | None) -> float:
    """Return the part of the usual spacing after which `score`, lower is better, is worth a checkpoint.

    Infinity if it never is. `best` is the score of the last such checkpoint; None: there is none yet.
    """
    if best is None:
        return 0.0
    unit = abs(best)
    return math.inf if score >= best - BEST_GAIN * unit else min(1.0, LARGE_GAIN * unit / (best - score))


def is_clockless_turn(since: float, patience: float) -> bool:
    """Return whether a state is worth a checkpoint where no clock is read; `since` is the share of the budget between.

    Shares are sums of steps, so their last bits say nothing.
    """
    return since >= max(patience, LEAST_CLOCKLESS_PART) * BEST_SHARE - ROUNDING


class TrialLedger(BaseModel):
    """The ledger of a run, readable and writable as JSON."""

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
    averaged: bool = Field(False, description="that evaluation was of the average of the weights")
    evaluated_step: int | None = Field(None, description="committed steps behind that evaluation")
    steps_to_meeting: int = Field(0, description="until workers that train apart have equal parameters")
    evaluation_due: bool = Field(False, description="it waits for their next average, where it costs no other")
    best: Best | None = None
    validation: Validation = Field(Validation(), description="of the steps that stay: whether they overfit")
    recent: tuple[float, ...] = Field((), description="losses of the last of these steps")
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
        """Put a segment on the bill. `option` is its exchange, if several compete.

        `num_workers` is the number of workers present. By default it is the number that sent, which differs if each
        worker trained a probe alone.
        """
        num_steps, sent = len(result.losses), bytes_per_worker(result.bytes_sent)
        self.steps += num_steps
        self.charge_bytes(result, num_workers=num_workers)
        self._bill(
            bytes_search=self.bill.bytes_search + sent * is_probe,
            bytes_dense=self.bill.bytes_dense + result.bytes_dense,
            steps_search=self.bill.steps_search + num_steps * is_probe,
            saved_bytes=max(self.bill.saved_bytes, result.saved_bytes),
            memory_bytes=max(self.bill.memory_bytes, result.memory_bytes),
        )
        if result.times is not None:
            self._bill(steps_timed=self.bill.steps_timed + num_steps)
            self.charge_seconds(**{f"seconds_{name}": value for name, value in result.times})
        self._bill_workers(result.steps_by_workers or {num_workers or len(result.bytes_sent): num_steps})
        took = sum(result.step_seconds)
        self._bill_option(option, steps=num_steps, steps_search=num_steps * is_probe, bytes_sent=sent, seconds=took)

    def promote(self, *, num_steps: int, num_bytes: int, seconds: float, option: str | None = None) -> None:
        """Move a probe's charges from the search to the commit.

        They are given, because other workers may have trained the probe again since, with other traffic.
        """
        self.charge_seconds(seconds_search=-seconds)
        self._bill(bytes_search=self.bill.bytes_search - num_bytes, steps_search=self.bill.steps_search - num_steps)
        self._bill_option(option, steps_search=-num_steps)

    def charge_bytes(self, result: SegmentResult | Evaluation | Written, *, num_workers: int | None = None) -> None:
        """Add the bytes sent by the busiest rank and by all ranks."""
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
        """Add elapsed seconds to lines of the bill, as in `charge_seconds(seconds_search=0.4)`."""
        self._bill(**{line: getattr(self.bill, line) + value for line, value in seconds.items()})

    def charge_warm_up(self, result: SegmentResult) -> None:
        """Charge the bytes of warm-up steps, which are discarded. They count as neither steps nor seconds."""
        self.charge(result.model_copy(update={"times": None}), is_probe=False)
        self.steps -= len(result.losses)
        by_workers = result.steps_by_workers or {len(result.bytes_sent): len(result.losses)}
        self._bill_workers({count: -steps for count, steps in by_workers.items()})

    def charge_recovery(self, before: Recovery, now: Recovery) -> None:
        """Add the cost of lost workers between `before` and `now`. No budget counts it."""
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

    def commit(self, result: SegmentResult) -> None:
        """Note that the steps of `result` stay."""
        self.step = result.first_step + len(result.losses)
        self.recent = (*self.recent, *result.losses)[-MOST_LOSSES:]
        self.steps_to_meeting = result.steps_to_meeting

    def is_record(self, score: float | None, *, min_delta: float = 0.0) -> bool:
        """Return whether `score` is better than those of all evaluations so far, by `min_delta`."""
        return score is not None and (self.record is None or score < self.record - min_delta)

    def note_evaluation(
        self, score: float | None, *, min_delta: float = 0.0, at_target: bool = False, averaged: bool = False
    ) -> None:
        """Record the current state's score, None if not finite, and whether it improved by `min_delta`."""
        self.score, self.evaluated_step, self.evaluation_due = score, self.step, False
        self.at_target, self.averaged = at_target, averaged
        if self.is_record(score, min_delta=min_delta):
            self.record, self.num_stale = score, 0
        else:
            self.num_stale += 1

    def note_checkpoint(self, url: str) -> None:
        """Record the checkpoint at `url` as the best if its state was evaluated and has the lowest score so far."""
        if self.score is None or self.evaluated_step != self.step:
            return
        if self.best is None or self.score < self.best.score:
            self.best = Best(checkpoint=url, score=self.score, step=self.step, averaged=self.averaged)

    @property
    def best_patience(self) -> float:
        """The part of the usual spacing after which the evaluated state is worth a checkpoint; infinity if never."""
        best = None if self.best is None else self.best.score
        return math.inf if self.score is None else patience_for(self.score, best)

    def schedule_to(self, best: Best) -> tuple[ScheduleEntry, ...]:
        """Return the schedule that led to the checkpoint `best`, whose step is known."""
        assert best.step is not None
        if best.schedule is not None:
            return best.schedule
        return learned_schedule.up_to(self.schedule, best.step)

    def note_insurance(self, line: "TrialLedger") -> None:
        """Put the second line's cost so far on the bill. The main line's budget does not count it."""
        self._bill(steps_insurance=line.steps, bytes_insurance=line.bytes)

    def rewind_to(self, earlier: "TrialLedger", *, num_steps: int) -> None:
        """Roll back the `num_steps` trained since `earlier`. Their cost stays on the bill.

        The best checkpoint stays the best, with the schedule that led to it. Patience is not reset.
        """
        if self.best is not None and self.best.step is not None and self.best.step > earlier.step:
            self.best = self.best.model_copy(update={"schedule": self.schedule_to(self.best)})
        self.step, self.schedule, self.steady = earlier.step, list(earlier.schedule), earlier.steady
        self.piece = None
        self.score, self.evaluated_step, self.at_target = earlier.score, earlier.evaluated_step, earlier.at_target
        self.averaged, self.validation, self.recent = earlier.averaged, earlier.validation, earlier.recent
        self.steps_to_meeting, self.evaluation_due = earlier.steps_to_meeting, earlier.evaluation_due
        self._bill(steps_taken_back=self.bill.steps_taken_back + num_steps)

    def stop_clock(self, seconds: float, *, num_held: int) -> None:
        """Write down the training clock. The run has held `num_held` workers since the last time."""
        self.bill = self.billed_at(seconds, num_held=num_held)
        self.seconds = seconds

    def billed_at(self, seconds: float, *, num_held: int) -> Bill:
        """Return the bill at `seconds` on the training clock."""
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
