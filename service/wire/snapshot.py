"""A job as a page shows it, all of one moment."""

from pydantic import Field

from service.wire.base import View
from service.wire.jobs import JobView
from service.wire.reports import JobReport
from service.wire.trials import ScheduleView, Series, StageView, TrialView


class Snapshot(View):
    """A job as a page shows it, all of one moment; or what has changed of it."""

    cursor: int = Field(description="the newest event of this moment: `since` of the next call, `after` of a stream")
    whole: bool = Field(description="true: everything, replace what you have; false: merge, by trial, stage and step")
    job: JobView | None = Field(description="null: as before")
    trials: tuple[TrialView, ...]
    stages: tuple[StageView, ...] = Field(description="decided ones, without their posteriors")
    schedules: tuple[ScheduleView, ...] = Field(description="of the same trials")
    series: tuple[Series, ...] = Field(description="`loss` and `validation_loss`; a step that comes again replaces")
    report: JobReport | None = Field(description="null: as before, but for what `trials` and `series` have")
