"""Views: the public shape of jobs, trials, stages and series. Client, page and CLI read nothing else."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from search.config import Budget
from search.curves.calibration import Calibration
from search.schedule_file import FORMAT, Provenance
from search.sweep.spec import CostUnit
from search.types import Band, Posterior, Refusal, Setting, Steer, Tax
from service.errors import UnreadableJob
from service.job.changes import Change
from service.job.parts import LOSS, MAX_LABELS, Direction, Name, Notes, Slug
from service.job.priority import Priority
from service.job.problems import Problem
from service.job.spec import JobSpec
from service.job.states import JobState, Verb
from service.wire.base import Asked, View
from service.wire.queue import QueuePlace
from service.wire.records import Bill, Count, Line, ProbeResult, RunEnd, Sample, ScheduleEntry, StageOutcome
from service.wire.stored import ShownJob, UnreadJob, unread_fields

#: Values, or entries of a list, that one request steers at most.
MAX_STEERED = 32


class ProbeView(View, ProbeResult):
    """A candidate of a stage's search, what it measured, and how it was judged."""

    reward: float | None = Field(
        description="fall of the log loss that it is judged by; null: diverged, too short, undecided"
    )
    posterior_mean: float | None = Field(description="of the reward, relative to the first finite probe's")
    posterior_std: float | None


class StageView(View, StageOutcome):
    """A stage: its probes, what was decided, why and from what, and what the commit did (null while it runs)."""

    arm: str
    seed: int
    num_steps: int | None
    density: float | None
    threshold: float | None
    tax: Tax = Field(description="what searching had taken of the trial's budget")
    forecast_weight: float | None = Field(description="how far forecasts followed fitted curves; null: none was made")
    num_earlier: int = Field(description="probes of earlier stages that informed the decision")
    refused: tuple[Refusal, ...] = Field(description="what was not probed, or not to the end, since it costs too much")
    promoted: str | None = Field(None, description="the probe whose steps the commit began with; null: none")
    steers: tuple[Steer, ...] = Field((), description="pins and vetoes of people that held in it")
    posterior: Posterior | None = Field(description="null: there was none, or it was not asked for")
    closed: bool
    loss: float | None = Field(description="the training loss that was forecast, as it came; null: diverged")
    z_score: float | None = Field(description="(loss - forecast) / forecast_std")
    bill: Bill | None = Field(description="the trial's, when the stage closed; null: not kept yet")
    probes: tuple[ProbeView, ...]


class TrialView(View, RunEnd):
    """One training run: one arm x one seed, or a sample of a sweep."""

    trial_id: str
    arm: str = Field(description="of a sample its name: `sample-3`")
    seed: int
    outcome: str | None = Field(description="completed, diverged; null: not finished")
    line: Line = Field(description="whose losses and weights these are at the end; `main` until then")
    backend: str | None
    device: str | None
    step: int = Field(description="committed steps so far")
    seconds: float = Field(description="training clock so far")
    learning_rate: float | None
    level: float | None
    validation_loss: float | None
    validation_metrics: dict[str, float | None] = Field(description="the workload's own, on the validation set")
    metric_directions: dict[str, Direction] = Field(description="which way each of them is better")
    bill: Bill
    weights_url: str | None
    sample: Sample | None = Field(None, description="the values that a sample sets in the job; null: it is an arm's")


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
    verbs: tuple[Verb, ...] = Field(description="what may be asked of it in this state")
    labels: dict[str, str]
    source: str | None = Field(None, description="the job that it is a clone of; null: it is none")
    notes: str = Field("", description="its users' own words on it")
    archived: bool = Field(False, description="lists leave it out unless they are asked")
    priority: Priority = Priority.NORMAL
    queue: QueuePlace | None = Field(
        None, description="its place while it is queued; `version` does not count it. Null in snapshots"
    )
    advice: tuple[str, ...] = Field((), description="sentences on what of the job is legal, but unwise")
    unreadable: str | None = Field(
        None,
        description="the fields that another release has stored and the service cannot read, such as `workers.colour`; "
        "`spec` is then the job as it is stored. Null: it reads all",
    )
    spec: ShownJob

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
        description="until the budgets are spent, at the pace so far; null: not known, or the job is over"
    )
    num_trials: int
    num_finished: int
    arm: str = Field(description="of the trial that the following are of: it trains, or has the lowest loss")
    learning_rate: float | None
    level: float | None
    level_name: str = Field(description="what its level is: density, threshold")
    losses: tuple[float | None, ...] = Field(
        description="its validation loss, as means over equal spans of steps, at most 40; null: diverged"
    )
    bytes_sent: int = Field(description="by one worker of each trial so far")
    bytes_dense: int = Field(description="what the same steps would have sent without compression")


class JobSummary(View):
    """A row of the job list."""

    id: str
    name: str
    owner: str = Field("first", description="who submitted it")
    project: str = Field("default", description="whose members see it")
    state: JobState
    reason: str
    created_at: datetime
    finished_at: datetime | None
    arms: tuple[str, ...]
    best_validation_loss: float | None = Field(description="the lowest that any of its trials reported")
    labels: dict[str, str]
    archived: bool = False
    priority: Priority = Priority.NORMAL
    queue: QueuePlace | None = Field(None, description="its place while it is queued")
    version: int = Field(0, description="in quotes it is the job's `ETag`, which verbs take as `If-Match`")
    verbs: tuple[Verb, ...] = Field((), description="what may be asked of it in this state")
    progress: JobProgress | None = Field(None, description="null unless asked for with `progress=true`")


class JobPage(View):
    jobs: tuple[JobSummary, ...]
    next_cursor: str | None = None
    total: int | None = Field(None, description="jobs on all pages; null unless asked for with `count=true`")


class JobOrder(StrEnum):
    """The orders of a list of jobs; with `-` it is turned around."""

    CREATED = "created"
    CREATED_DOWN = "-created"
    NAME = "name"
    NAME_DOWN = "-name"
    STATE = "state"
    STATE_DOWN = "-state"
    FINISHED = "finished"
    FINISHED_DOWN = "-finished"

    @property
    def field(self) -> str:
        """Return what the jobs are ordered by; those that have it in common are in the order of their age."""
        return self.value.removeprefix("-")

    @property
    def is_down(self) -> bool:
        """Return whether the last comes first."""
        return self.value.startswith("-")


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


class SteerRequest(Asked):
    """A person's word on what the controllers of a running job may use, from the next stage of each trial on."""

    trials: tuple[str, ...] | None = Field(
        None, min_length=1, max_length=1000, description="ids; null: all whose controller searches"
    )
    pin: dict[str, Setting] = Field(
        default_factory=dict, max_length=MAX_STEERED, description="by name, values that are used and not searched"
    )
    veto: dict[str, Band | Annotated[tuple[bool | str, ...], Field(min_length=1, max_length=MAX_STEERED)]] = Field(
        default_factory=dict,
        max_length=MAX_STEERED,
        description="by name, values that are neither tried nor used: `above` and `below` of numbers, a list of others",
    )
    search_now: bool = Field(False, description="the next stage searches, whether or not anything happened")
    clear: bool | tuple[Count, ...] = Field(
        False, description="withdraw first: true: all that holds, of the same trials; else these steers"
    )

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not (self.pin or self.veto or self.search_now or self.clear):
            raise ValueError("say at least one of `pin`, `veto`, `search_now` and `clear`")
        return self


class SteerView(View):
    """A person's word on what a job's controllers may use, and since when they heed it."""

    id: int = Field(description="counts from 1 within its job")
    at: datetime
    by: str = Field(description="the name of the key that said so")
    trials: tuple[str, ...]
    pin: dict[str, Setting]
    veto: dict[str, Band | tuple[bool | str, ...]]
    search_now: bool
    first_stages: dict[str, int] = Field(
        description="by trial, the first stage that it held in; none yet: the trial's next stage has not opened"
    )
    in_force: bool = Field(description="neither withdrawn nor, where it but asked for a search, done")
    withdrawn_at: datetime | None = None
    withdrawn_by: str | None = None


class SteerableView(View):
    """A value that people may steer in some of a job's trials: a number from `low` to `high`, or one of `names`."""

    name: str = Field(description="as `pin` and `veto` take it")
    trials: tuple[str, ...]
    low: float | None = Field(None, description="null: it is no number")
    high: float | None = None
    names: tuple[bool | str, ...] = ()
    current: Setting | None = Field(None, description="what the first of these trials uses; null: nothing is decided")


class SteeringView(View):
    """The steers of a job, and what may be steered."""

    version: int = Field(description="the job's, for `If-Match`")
    steers: tuple[SteerView, ...] = Field(description="all that was said, the newest last")
    steerable: tuple[SteerableView, ...] = Field(description="by trials that have it in common")
    notes: tuple[str, ...] = Field((), description="sentences on trials of which little can come any more")


class Series(View):
    """Points of one metric of one trial's committed line, thinned to the number asked for."""

    trial_id: str
    arm: str
    seed: int
    name: str
    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    values: tuple[float | None, ...]
    num_points: int = Field(description="stored, before thinning")


class ScheduleView(View):
    """The learned schedule of one trial, as `search.schedule_file.RecordedSchedule` reads it."""

    format: str = FORMAT
    trial_id: str
    arm: str
    seed: int
    optimizer: str
    complete: bool
    line: Line = Field(description="of two lines the one that was kept; `main` until then")
    num_steps: int
    warmup_steps: int = Field(0, description="the optimizer's linear ramp, which the rates of `entries` do not have")
    entries: tuple[ScheduleEntry, ...]
    provenance: Provenance | None = Field(None, description="the run that it was learned in; null in snapshots")


class EventKind(StrEnum):
    """The kinds of events, and what their `data` has."""

    JOB = "job"  # state, reason, version, attempt, and the training clocks of the trials under way
    JOB_DELETED = "job_deleted"  # name
    TRIAL_STARTED = "trial_started"  # trial_id, backend, device
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
    gap: bool = Field(description="events behind `after` are gone; the page begins with the oldest that is left")


class AttemptView(View):
    """A life of a job on the cluster: from its workers' start to a pause, an end, or a fault."""

    number: int
    began_at: datetime
    ended_at: datetime | None = Field(description="null: it lives")
    outcome: str | None = Field(description="succeeded, failed, cancelled, paused; null: it lives")
    reason: str
    workers: int | None = Field(None, description="of all training runs that go on at a time; null: it is not known")


class ArtifactKind(StrEnum):
    """The kinds of a job's files."""

    REPORT = "report"
    METRICS = "metrics"
    SCHEDULE = "schedule"
    WEIGHTS = "weights"
    CHECKPOINT = "checkpoint"
    LOG = "log"


#: Of a trial's weights: those of the best evaluated state, or of the end.
Which = Literal["best", "last"]


class Artifact(View):
    """A file of a job that there is."""

    name: str = Field(description="unique within the job")
    kind: ArtifactKind
    trial_id: str | None = Field(description="null: of the whole job")
    href: str = Field(
        description="where a GET has it; of a checkpoint its manifest, with the SHA-256 of each file beside it"
    )
    media_type: str
    num_bytes: int | None = Field(description="of a checkpoint all its files'; null: made when it is asked for")
    sha256: str | None = Field(
        None, description="of weights, which `Repr-Digest` has too; a checkpoint's manifest has those of its files"
    )
    created_at: datetime | None = Field(description="null: made when it is asked for, or not known")


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
    outcome: str | None = Field(description="completed, diverged; null: not finished")
    line: Line = Field(description="whose losses these are at the end; `main` until then")
    steps: int = Field(description="committed")
    seconds: float = Field(description="training clock")
    validation_loss: float | None
    validation_metrics: dict[str, float | None]
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
    """A mean over seeds with Student's 95 % interval."""

    num_seeds: int
    mean: float
    low: float | None = Field(description="null with one seed: nothing is known of the spread")
    high: float | None


class ArmReport(View):
    """The results of an arm's finished trials."""

    arm: str
    controller: str
    num_trials: int
    num_finished: int
    num_diverged: int
    validation_loss: Estimate | None = Field(description="null: no finished trial has one")
    validation_metrics: dict[str, Estimate]
    bytes_sent: Estimate | None = Field(description="by one worker")
    seconds_training: Estimate | None
    seconds_to_target: Estimate | None = Field(description="to each seed's `target`; of the seeds that got there")


class SampleStatus(StrEnum):
    """The progress of a trial of a sweep."""

    WAITING = "waiting"
    TRAINING = "training"
    PRUNED = "pruned"  # it was behind at a rung, and ended there
    COMPLETED = "completed"
    DIVERGED = "diverged"


class RankedTrial(View):
    """A trial's place in a sweep. Those that got further in their budget come first, then the better ones."""

    place: int = Field(description="1: the best")
    trial_id: str
    arm: str = Field(description="of a sample its name")
    sample: Sample | None = Field(description="null: an arm's trial, which is never pruned")
    status: SampleStatus
    share: float = Field(description="of the budget, where `value` and `cost` were measured: at a rung, or the end")
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


class JobReport(View):
    """A job's result: every trial, and every arm over its seeds."""

    job_id: str
    name: str
    state: JobState
    complete: bool = Field(description="false while the job is not over: of what has finished so far")
    confidence: float = Field(description="of the intervals")
    metric: str = Field(LOSS, description="the objective's: what the best arm is the best by")
    best_arm: str | None = Field(
        description="the best mean of the metric among the arms that diverged least; null: not all finished"
    )
    metric_directions: dict[str, Direction]
    prices: Prices | None = Field(None, description="the operator's; null: none is set")
    arms: tuple[ArmReport, ...]
    trials: tuple[TrialReport, ...]
    sweep: SweepReport | None = Field(None, description="the ranking over `params`; null: the job has none")


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
    """Several jobs side by side. The target is the worst value at which their trials ended.

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


class ProblemDocument(BaseModel):
    """RFC 9457 problem details."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str | None = Field(None, description="as in the answer's `X-Request-ID`, and in the service's log")
    errors: tuple[Problem, ...] = ()
