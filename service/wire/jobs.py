"""Views of jobs, alone and in lists, and requests about a job: an edit, an extension, a dry run, a clone."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from search.config import Budget, Caps
from search.sweep.spec import MAX_SAMPLES
from service.errors import UnreadableJob
from service.job.changes import Change
from service.job.parts import MAX_LABELS, Name, Notes, Occasions, Seeds, Slug, WebhookUrl
from service.job.priority import Priority
from service.job.spec import JobSpec
from service.job.states import ALLOWED_IN, RULES, TERMINAL, JobState, Verb
from service.wire.base import Asked, View
from service.wire.queue import QueuePlace
from service.wire.stored import ShownJob, UnreadJob, unread_fields


def _known(verbs: tuple[Verb, ...]) -> tuple[Verb, ...]:
    return tuple(verb for verb in verbs if verb in ALLOWED_IN)


#: Verbs without those that only a newer service knows, for which this release has no call.
Verbs = Annotated[tuple[Verb, ...], AfterValidator(_known)]


def _is_over(state: JobState, finished_at: datetime | None) -> bool:
    """Return whether a job has ended. It has an end time then, even in a state that only a newer service knows."""
    return state in TERMINAL or (state not in RULES and finished_at is not None)


class LostAttempt(View):
    """An attempt that was lost, and how many more may be."""

    number: int
    reason: str = Field(description="why it was lost, for a person")
    num_lost: int = Field(description="attempts in a row that got the job no further, this one included")
    max_lost: int = Field(description="after so many the job fails")


class JobView(View):
    """A job and where it is."""

    id: str
    name: str
    owner: str = Field("first", description="who submitted it")
    project: str = Field("default", description="whose members see it")
    state: JobState
    reason: str = Field("", description="why it is in this state, for a person")
    attempt: int = Field(0, description="lives on the cluster so far")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    version: int = Field(
        description="grows with every change of state or reason, and with every edit; in quotes it is the job's `ETag`"
    )
    verbs: Verbs = Field(description="what may be asked of it in this state")
    labels: dict[str, str]
    source: str | None = Field(None, description="the job that it is a clone of; null: it is none")
    notes: str = Field("", description="its users' own words on it")
    archived: bool = Field(False, description="lists leave it out unless they are asked")
    priority: Priority = Priority.NORMAL
    queue: QueuePlace | None = Field(
        None, description="its place while it is queued; `version` does not count it. Null in snapshots"
    )
    lost: LostAttempt | None = Field(
        None, description="its last attempt that was lost; null: none was, or the job has got further since, or is over"
    )
    seconds_held: float | None = Field(
        None, description="for how long it held its workers, over all attempts; null: it is not over, or never held any"
    )
    advice: tuple[str, ...] = Field((), description="sentences on what of the job is legal, but unwise")
    unreadable: str | None = Field(
        None,
        description="the fields that another release has stored and the service cannot read, such as `workers.colour`; "
        "`spec` is then the job as it is stored. Null: it reads all",
    )
    spec: ShownJob

    @property
    def is_over(self) -> bool:
        """True where it has ended."""
        return _is_over(self.state, self.finished_at)

    @property
    def unread(self) -> str:
        """The fields that the service, or this release, cannot read; empty: there are none."""
        return self.unreadable or (unread_fields(self.spec.root) if isinstance(self.spec, UnreadJob) else "")

    @property
    def readable(self) -> JobSpec:
        """The job itself; raises UnreadableJob where this release cannot read it."""
        if isinstance(self.spec, UnreadJob):
            raise UnreadableJob(self.id, self.unread)
        return self.spec


class JobProgress(View):
    """A job's progress, and the values that are in force."""

    share: float = Field(
        description="of its trials' budgets that is spent, 0 to 1; a trial that completed has spent its"
    )
    seconds_left: float | None = Field(
        description="until the budgets are spent, at the pace so far; null: not known, or no trial trains now"
    )
    num_trials: int
    num_finished: int
    arm: str = Field(
        description="of the trial that the following are of: one of the best arm's, once that has a result, and of "
        "these the one that trains, or has the lowest loss"
    )
    learning_rate: float | None
    level: float | None
    level_name: str = Field(description="what its level is: density, threshold")
    losses: tuple[float | None, ...] = Field(
        description="its validation loss, as means over equal spans of steps, at most 40; null: diverged"
    )
    bytes_sent: int = Field(description="by one worker of each trial of that arm so far")
    bytes_dense: int = Field(description="what the same steps would have sent without compression")


class JobBill(View):
    """The bills of all trials of a job so far, searches included; null: an earlier release did not measure it."""

    steps: int = Field(description="committed")
    bytes_sent: int = Field(description="by one worker of each trial")
    bytes_dense: int = Field(description="what the same steps would have sent without compression")
    bytes_of_all: int | None = Field(description="sent by all workers")
    seconds_training: float = Field(description="on the trials' training clocks")
    seconds_search: float
    seconds_of_workers: float | None = Field(description="training clocks times the workers held")


class JobSummary(View):
    """A row of the job list."""

    id: str
    name: str
    owner: str = Field("first", description="who submitted it")
    project: str = Field("default", description="whose members see it")
    state: JobState
    reason: str
    created_at: datetime
    started_at: datetime | None = Field(None, description="when it first trained")
    finished_at: datetime | None
    arms: tuple[str, ...]
    best_validation_loss: float | None = Field(description="the lowest that any of its trials reported")
    metric: str = Field("loss", description="the metric of `result`: the objective's")
    result: float | None = Field(
        None,
        description="the best arm's mean of `metric` over its seeds, or the best sample's value; null: the job has not "
        "succeeded",
    )
    labels: dict[str, str]
    archived: bool = False
    priority: Priority = Priority.NORMAL
    queue: QueuePlace | None = Field(None, description="its place while it is queued")
    lost: LostAttempt | None = Field(
        None, description="its last attempt that was lost; null: none was, or the job has got further since, or is over"
    )
    seconds_held: float | None = Field(
        None, description="for how long it held its workers, over all attempts; null: it is not over, or never held any"
    )
    version: int = Field(0, description="in quotes it is the job's `ETag`, which verbs take as `If-Match`")
    verbs: Verbs = Field((), description="what may be asked of it in this state")
    progress: JobProgress | None = Field(None, description="null unless asked for with `progress=true`")
    fields: dict[str, Any] | None = Field(
        None, description="of the job's spec, by the pointers asked for with `field=`; null where it has nothing there"
    )
    bill: JobBill | None = Field(None, description="null unless asked for with `bill=true`")

    @property
    def is_over(self) -> bool:
        """True where it has ended."""
        return _is_over(self.state, self.finished_at)


class JobPage(View):
    jobs: tuple[JobSummary, ...]
    next_cursor: str | None = None
    total: int | None = Field(None, description="jobs on all pages; null unless asked for with `count=true`")


class JobOrder(StrEnum):
    """The orders of a list of jobs, `result` the best first; with `-` it is turned around."""

    CREATED = "created"
    CREATED_DOWN = "-created"
    NAME = "name"
    NAME_DOWN = "-name"
    STATE = "state"
    STATE_DOWN = "-state"
    FINISHED = "finished"
    FINISHED_DOWN = "-finished"
    RESULT = "result"
    RESULT_DOWN = "-result"

    @property
    def field(self) -> str:
        """Return the field that orders the jobs; ties are ordered by age."""
        return self.value.removeprefix("-")

    @property
    def is_down(self) -> bool:
        """Return whether the order is descending."""
        return self.value.startswith("-")


class WebhookPatch(Asked):
    """A JSON merge patch on a job's webhook. What is left out stays."""

    url: WebhookUrl | None = Field(None, description="gets a signed POST; a job without a webhook needs it")
    on: Occasions | None = Field(None, description="what it is told of; null: the job's end")


class JobEdit(Asked):
    """A JSON merge patch on a job: what of it may be edited. What is left out stays."""

    labels: dict[Slug, Name | None] | None = Field(
        None,
        max_length=MAX_LABELS,
        description="each by its name; null removes it, and in the place of all of them, all",
    )
    notes: Notes | None = Field(None, description="null: none")
    archived: bool | None = Field(None, description="only of a job that is over; null: false")
    priority: Priority | None = Field(None, description="only of a job that is not over; null: normal")
    webhook: WebhookPatch | None = Field(None, description="is told of what happens from then on; null: none")


class Extension(Caps):
    """More for a job that succeeded: a larger budget for its trials, further seeds, or more samples."""

    seeds: Seeds | None = Field(None, description="further ones: each arm trains with each of them, too")
    samples: int | None = Field(None, ge=1, le=MAX_SAMPLES, description="of the sweep in all, old and new")

    @model_validator(mode="after")
    def _gives_something(self) -> Self:
        if not self.model_dump(exclude_none=True):
            raise ValueError("give at least one of `seconds`, `steps`, `bytes`, `seeds` and `samples`")
        return self

    @property
    def budget(self) -> Budget | None:
        """The caps as a budget; None: there are none, and finished trials stay as they are."""
        caps = self.model_dump(exclude_none=True, include=set(Caps.model_fields))
        return Budget(**caps) if caps else None


class Validated(View):
    """A dry run's answer: the job with every default filled in."""

    valid: bool = True
    spec: JobSpec
    num_trials: int
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = Field((), description="sentences on what of the job is legal, but unwise")


class Changes(BaseModel):
    """A JSON merge patch on a job: any of its fields; null gives a field its default."""

    model_config = ConfigDict(extra="allow")


class Cloned(View):
    """The differences of a clone, and the job that they make."""

    source: str = Field(description="the job it was made from")
    changes: tuple[Change, ...]
    spec: ShownJob
    job: JobView | None = Field(description="null: a dry run")
