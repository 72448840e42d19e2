"""The ranking of a sweep's samples, final or so far."""

from pydantic import Field

from search.sweep.spec import CostUnit
from service.job.parts import Direction
from service.job.vocabulary import Vocabulary
from service.wire.base import View
from service.wire.records import Sample


class SampleStatus(Vocabulary):
    """The progress of a trial of a sweep."""

    WAITING = "waiting"
    TRAINING = "training"
    PAUSED = "paused"
    NOT_FINISHED = "not finished"  # and the job is over
    PRUNED = "pruned"  # it was behind at a rung, and ended there
    STOPPED = "stopped"  # a person ended it early
    COMPLETED = "completed"
    DIVERGED = "diverged"
    FAILED = "failed"


class RankedTrial(View):
    """A trial's place in a sweep. Those that got further in their budget come first, then the better ones."""

    place: int = Field(description="1: the best")
    trial_id: str
    arm: str = Field(description="of a sample its name")
    sample: Sample | None = Field(description="null: an arm's trial, which is never pruned")
    status: SampleStatus
    share: float = Field(
        description="of the budget, where `value` and `cost` were measured: at a rung, or the end. 0: on the way there"
    )
    value: float | None = Field(description="of the metric; null: it has none yet, or it was not finite")
    cost: float | None = Field(description="the second objective; null: there is none, or nothing was measured")
    on_front: bool = Field(description="it ended, and no other that did is better in one and as good in the other")


class RungView(View):
    """A share of the budget at which samples are compared."""

    share: float
    num_reached: int
    num_kept: int = Field(description="of those that reached it, arms among them")


class SweepReport(View):
    """The ranking of a job's samples and arms, final or so far."""

    metric: str
    direction: Direction
    cost: CostUnit | None
    ranking: tuple[RankedTrial, ...]
    rungs: tuple[RungView, ...]
    saved_share: float = Field(description="of all trials' budgets, what those that ended at a rung have left")
