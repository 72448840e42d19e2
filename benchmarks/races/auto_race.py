"""A run of the comparison of `auto` with its options: as a job's trial, and what is watched of it."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from races import tasks
from races.race import Validation, crossing

from service.cluster.sink import UnaskedSink
from service.job.parts import TrialSpec
from service.job.spec import JobSpec
from service.wire.records import (
    AnyRecord,
    Bill,
    Billed,
    Control,
    MetricPoints,
    StageDecided,
    TrialFinished,
    TrialStarted,
)
from trainers.methods.exchange.auto.spec import DEFAULT, LOCAL, Option, exchange_of
from trainers.methods.exchange.dense.spec import NoneConfig

Json = dict[str, Any]
#: 0.2 million parameters, so that a dense step sends 0.8 MB. Its loss falls smoothly: two runs at rates 5 % apart
#: differ by 0.01, which is 5 % of the steps; on `images` it was a third of them.
TASK = "text"
NUM_HOSTS = 2
AUTO = "auto"
ARMS = (AUTO, *(option.name for option in DEFAULT))
#: The same for all runs. Rates are searched near the best, since the comparison is of exchanges: at 1, which probes of
#: 40 steps prefer, a run takes three times as long. Where no search fits, the guess is good.
OPTIMIZER = {"kind": "schedulefree_sgd", "learning_rate": 0.3}
#: Seconds without searches after which a run's speed is known.
SPEED_AFTER_S = 15.0
CONTROLLER = {"kind": "bo", "min_learning_rate": 0.2, "max_learning_rate": 0.5, "max_search_fraction": 0.2}


@dataclass(frozen=True)
class Race:
    """The parts that all runs on a link have in common."""

    mbps: float | None  # of every cable, each way; None: no limit
    budget_s: float  # of which searches may take a share
    seed: int
    target: float  # validation loss that ends a run


def trial(race: Race, arm: str) -> TrialSpec:
    """Return the run as a job's trial."""
    job = {
        "workload": tasks.reference(TASK),
        "workers": {"count": NUM_HOSTS},
        "optimizer": OPTIMIZER,
        "controller": CONTROLLER,
        "budget": {"seconds": race.budget_s},
        "checkpoint": {"every_seconds": 3600},
        "seeds": [race.seed],
        **exchange_part(arm),
    }
    return next(JobSpec.model_validate(job).trials())


def exchange_part(arm: str) -> Json:
    """Return the part of a job that makes it train by an option alone, or by all of them."""
    if arm == AUTO:
        return {"exchange": {"kind": AUTO}}
    option = Option.parse(arm)
    part: Json = {"exchange": exchange_of([option], like=NoneConfig())}
    return part | ({"sync": {"kind": LOCAL, "period": int(option.level or 1)}} if option.kind == LOCAL else {})


class Watcher(UnaskedSink):
    """A trial's sink that stops it at the loss, or after `patience_s` of its clock or `patience_steps`.

    Or as soon as its speed shows that it will not make `least_steps` within `patience_s`, which may be lowered while
    it trains. `now` returns the seconds that the trial has had, whatever their zero.
    """

    def __init__(
        self,
        target: float,
        patience_s: float,
        patience_steps: float = math.inf,
        *,
        least_steps: float = 0.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target, self.patience_s, self._patience_steps = target, patience_s, patience_steps
        self._least_steps, self._now = least_steps, now
        self._looks: list[Validation] = []
        self._decided: list[StageDecided] = []
        self._bill = Bill()
        self._started = self._before_s = 0.0

    def report(self, *records: AnyRecord) -> None:
        for record in records:
            match record:
                case TrialStarted():
                    self._started = self._now()
                case MetricPoints(name="validation_loss"):
                    self._look(record)
                case StageDecided():
                    self._decided.append(record)
                case Billed():
                    self._bill = record.bill

    def _look(self, points: MetricPoints) -> None:
        if not self._looks:  # the first is when the clock starts
            self._before_s = self._now() - self._started - points.seconds[0]
        for step, seconds, loss in zip(points.steps, points.seconds, points.values, strict=True):
            loss = math.nan if loss is None else loss
            self._looks.append(Validation(step, seconds, own=loss, mean=loss))

    def asked(self) -> Control:
        bill = self._bill
        has_lost = bill.seconds_training > self.patience_s or bill.steps > self._patience_steps or self._is_too_slow()
        is_there = any(look.loss <= self._target for look in self._looks)
        return Control.STOP if is_there or has_lost else Control.RUN

    def _is_too_slow(self) -> bool:
        bill = self._bill  # of a search that is under way it does not know the seconds yet
        line_s, most_s = bill.seconds_training - bill.seconds_search, self.patience_s - bill.seconds_search
        return bill.steps > 0 and line_s > SPEED_AFTER_S and bill.steps / line_s * most_s < self._least_steps

    def told(self, finished: TrialFinished) -> Json:
        """Return what is recorded: when the loss was reached, and what was tried, sent and chosen on the way."""
        reached, bill = crossing(self._looks, self._target), finished.bill
        return {
            "steps": reached and reached[0],
            "seconds": reached and reached[1],
            "seconds_before": self._before_s,
            "seconds_taken": bill.seconds_training,
            "seconds_search": bill.seconds_search,
            "seconds_evaluation": bill.seconds_evaluation,
            "steps_taken": bill.steps,
            "steps_search": bill.steps_search,
            "bytes_sent": bill.bytes_sent,
            "by_option": {option: took.model_dump() for option, took in bill.by_option.items()},
            "decisions": [[each.learning_rate, each.values.get("option"), each.reason] for each in self._decided],
            "validations": [[look.step, look.seconds, look.loss] for look in self._looks],
        }
