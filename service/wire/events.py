"""Events: committed changes of jobs."""

from datetime import datetime
from typing import Any

from pydantic import Field

from service.job.vocabulary import Vocabulary
from service.wire.base import View


class EventKind(Vocabulary):
    """The kinds of events, and what their `data` has."""

    JOB = "job"  # state, reason, version, attempt, and the training clocks of the trials under way
    JOB_DELETED = "job_deleted"  # name
    TRIAL_STARTED = "trial_started"  # trial_id, backend, device
    TRIAL_STOPPED = "trial_stopped"  # trial_id, by: a person ends it early
    PROGRESS = "progress"  # trial_id and its newest step, seconds, rate, level, losses, bytes_sent
    PROBE = "probe"  # trial_id, stage, probe_id, learning_rate, loss, status
    STAGE_DECIDED = "stage_decided"  # trial_id, stage, first_step, learning_rate, level, reason
    STAGE_CLOSED = "stage_closed"  # trial_id, stage, step, num_steps, loss
    CHECKPOINT = "checkpoint"  # trial_id, stage, step
    TRIAL_FINISHED = "trial_finished"  # trial_id, outcome, validation_loss
    SAMPLE = "sample"  # trial_id, values, drawn_by
    RUNG = "rung"  # trial_id, rung, step, value, and whether it goes on: kept
    STEERED = "steered"  # steer (null: none was added), withdrawn (ids), by
    REPAIR = "repair"  # trial_id, seconds and absences so far, and how many repairs there were
    WEBHOOK = "webhook"  # outcome, tries, reason
    GAP = "gap"  # after: events behind this id are lost to the reader


class Event(View):
    """A change of a job, as it was committed."""

    id: int = Field(description="grows with every event of the service; `Last-Event-ID` and `after` take it")
    job_id: str | None = Field(description="null in a `gap`")
    project: str | None = Field(description="the job's; null in a `gap`")
    kind: EventKind
    at: datetime
    data: dict[str, Any] = Field(description="by kind; texts are cut at 500 characters")


class EventPage(View):
    """Events, oldest first."""

    events: tuple[Event, ...]
    next_after: int = Field(description="`after` of the next page; also where a stream would go on")
    gap: bool = Field(
        description="events behind `after`, of these kinds, are gone; the page begins with the oldest that is left"
    )
