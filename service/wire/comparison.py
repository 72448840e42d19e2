"""Several jobs side by side."""

from typing import Any

from pydantic import Field

from service.wire.base import View
from service.wire.jobs import JobView
from service.wire.reports import ArmReport, TrialReport


class Difference(View):
    """A field in which jobs differ, with its value in each of them, in their order."""

    pointer: str = Field(description="RFC 6901, into the job")
    values: tuple[Any, ...] = Field(description="null: it is not there, or has no value")


class ComparedTrial(View):
    """A trial of one of the jobs, and when it was first as good as the common target."""

    job_id: str
    trial: TrialReport
    seconds_to_target: float | None = Field(description="null: never, or there is no target")


class ComparedArm(View):
    """An arm of one of the jobs."""

    job_id: str
    arm: ArmReport = Field(description="its `seconds_to_target` is to the common target")


class Comparison(View):
    """Several jobs side by side. The target is the median of the values at which their trials ended.

    It is of the metric that the objectives of all of them name, else of the loss.
    """

    jobs: tuple[JobView, ...]
    differences: tuple[Difference, ...]
    metric: str
    confidence: float = Field(description="of the intervals over seeds")
    target: float | None = Field(description="null: no trial has an evaluation yet")
    target_loss: float | None = Field(description="the same where the metric is the loss; else null")
    arms: tuple[ComparedArm, ...]
    trials: tuple[ComparedTrial, ...]
