"""A job's result: every trial with its bill and price, and every arm over its seeds."""

from pydantic import Field

from search.config import Budget
from search.curves.calibration import Calibration
from service.job.parts import LOSS, Direction
from service.job.states import JobState
from service.wire.base import View
from service.wire.records import Bill, Line
from service.wire.sweeps import SweepReport


class Prices(View):
    """The operator's prices."""

    worker_hour: float | None = Field(description="null: not charged")
    gb: float | None = Field(description="of 10^9 bytes that workers send; null: not charged")
    currency: str


class Cost(View):
    """The price of a trial, at the operator's present prices."""

    worker_hours: float = Field(description="of all workers, on the training clock and in recoveries")
    gigabytes: float = Field(description="what all workers sent, in every way")
    money: float


class Crossing(View):
    """The moment when the first arm was as good as another ended, by the objective; seconds on each training clock."""

    value: float = Field(description="of the objective's metric, at which the other ended")
    loss: float = Field(description="the same where that metric is the loss; else the validation loss of the other")
    seconds: float | None = Field(description="null: never")
    other_seconds: float = Field(description="when the other first got there itself")


class TrialReport(View):
    """One trial's result."""

    trial_id: str
    arm: str
    seed: int
    controller: str
    outcome: str | None = Field(description="completed, diverged, of a sample also failed; null: not finished")
    line: Line = Field(description="whose losses these are at the end; `main` until then")
    steps: int = Field(description="committed")
    seconds: float = Field(description="training clock")
    validation_loss: float | None
    validation_metrics: dict[str, float | None]
    test: dict[str, float | None] = Field(
        default_factory=dict, description="`loss` and metrics on the workload's test set, on which nothing was chosen"
    )
    bill: Bill
    cost: Cost | None = Field(None, description="null: the operator has set no price")
    target: float | None = Field(
        None, description="`objective.target`; else the worst value of the metric at which an arm ended with this seed"
    )
    target_loss: float | None = Field(description="the same where that metric is the loss; else null")
    seconds_to_target: float | None = Field(description="until this trial was first there; null: never")
    calibration: Calibration = Field(description="its forecasts against what came")
    level_name: str = Field(description="what its level is: density, threshold")
    crossing: Crossing | None = Field(description="the first arm against this trial; null in the first arm")
    searching_budget: Budget | None = Field(
        None, description="where nothing was searched for want of budget: about what a search needs; else null"
    )
    notes: tuple[str, ...] = Field((), description="sentences that a reader of the figures needs")


class Estimate(View):
    """A mean over seeds with Student's 95 % interval.

    Losses, bytes and seconds are positive: their interval is that of the logarithm, or of two seeds both values.
    """

    num_seeds: int
    mean: float
    low: float | None = Field(description="null with one seed: nothing is known of the spread")
    high: float | None


class BesideBest(View):
    """An arm beside the best one, over the seeds with which both have finished.

    The arms share the model, the order of the samples and the seed, so these intervals are narrower than the arms'.
    """

    difference: Estimate | None = Field(description="of the metric, this arm's minus the best arm's; null: not known")
    bytes_sent: Estimate | None = Field(description="the ratio to the best arm's")
    seconds_training: Estimate | None = Field(description="the ratio to the best arm's")
    seconds_to_target: Estimate | None = Field(description="the ratio to the best arm's, of the seeds that got there")


class ArmReport(View):
    """The results of an arm's finished trials."""

    arm: str
    controller: str
    num_trials: int
    num_finished: int
    num_diverged: int
    validation_loss: Estimate | None = Field(description="null: no finished trial has one")
    validation_metrics: dict[str, Estimate]
    test: dict[str, Estimate] = Field(default_factory=dict, description="of `loss` and metrics on the test set")
    bytes_sent: Estimate | None = Field(description="by one worker")
    seconds_training: Estimate | None
    seconds_to_target: Estimate | None = Field(description="to each seed's `target`; of the seeds that got there")
    beside_best: BesideBest | None = Field(None, description="null: it is the best arm, or none is known")


class JobReport(View):
    """A job's result: every trial, and every arm over its seeds."""

    job_id: str
    name: str
    state: JobState
    reason: str = Field("", description="why it is in this state, for a person: such as who or what stopped it early")
    complete: bool = Field(description="false while the job is not over: of what has finished so far")
    confidence: float = Field(description="of the intervals")
    metric: str = Field(LOSS, description="the objective's: what the best arm is the best by")
    best_arm: str | None = Field(
        description="the best mean of the metric among the arms that diverged least; null: the job is not over and not "
        "all finished, or there is only one"
    )
    best_is_clear: bool | None = Field(
        None,
        description="it diverged less, or the interval of the difference excludes 0, beside every other arm; null: "
        "there is no best arm",
    )
    best_trial: str | None = Field(
        None,
        description="id of the first in the sweep's ranking, so far if the sweep is not over; else of the best trial "
        "of `best_arm`; `arm=best` names it; null: none has a result, or not all have finished",
    )
    metric_directions: dict[str, Direction]
    prices: Prices | None = Field(None, description="the operator's; null: none is set")
    arms: tuple[ArmReport, ...]
    trials: tuple[TrialReport, ...]
    sweep: SweepReport | None = Field(None, description="the ranking over `params`; null: the job has none")
