"""Records of a running attempt, and the API's answers: the wire format between cluster and API.

Batches are keyed (attempt, stream, sequence), where a stream is `driver` or a trial's id; a batch that comes
twice counts once. Every answer carries `control`.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, StrictBool

from search.past_jobs.prior import NO_PRIOR, Prior
from search.sweep.spec import SampleValues
from search.types import Decision, Steer
from service.job.parts import Direction
from service.job.spec import StoredJob
from trainers.spec.workloads import JobWeights

SCHEMA_VERSION: Literal[1] = 1
#: The largest integer of a database. Every number that is looked up there must not exceed it.
MAX_WHOLE = 2**63 - 1
DRIVER_STREAM = "driver"
MAX_RECORDS = 1000  # per batch


#: The main line, which is searched, or the second line, which trains the user's own schedule in parallel.
Line = Literal["main", "insurance"]
#: The prefix of the second line's series. They count that line's own steps.
INSURANCE_PREFIX = "insurance_"
#: The prefix of the numbers that the workload returns with its loss.
OWN_PREFIX = "own_"
#: Values of a run besides learning rate and level, by name, as in `search.types.FURTHER`.
FurtherValues = dict[str, bool | int | float | str]


#: An id or other name. Databases index it, and index keys must be short.
Word = Annotated[str, Field(max_length=200)]
MAX_REASON_CHARS = 10_000
#: Sentences from a driver. A long text is cut, because a refusal would lose the whole batch.
Reason = Annotated[str, AfterValidator(lambda text: text[:MAX_REASON_CHARS])]
#: A count or a step, within a database's integers.
Count = Annotated[int, Field(ge=0, le=MAX_WHOLE)]


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Control(StrEnum):
    """The API's request to whoever reports."""

    RUN = "run"
    PAUSE = "pause"  # keep a checkpoint, then give everything back
    STOP = "stop"  # end as if the budget were spent, and keep the result
    CANCEL = "cancel"
    FENCED = "fenced"  # a later attempt owns the job: stop at once, report nothing more

    @classmethod
    def _missing_(cls, word: object) -> "Control | None":
        """Read an unknown request of a newer service as `run`."""
        return cls.RUN if isinstance(word, str) else None


class TrialStarted(Record):
    kind: Literal["trial_started"] = "trial_started"
    trial_id: Word
    arm: Word
    seed: Count
    backend: Word = Field(description="gloo or nccl")
    device: Word
    metrics: dict[str, Direction] = Field(
        default_factory=dict, description="the workload's own, and which way is better"
    )


class MetricPoints(Record):
    """Points of one series of the committed line. A diverged value is null."""

    kind: Literal["metrics"] = "metrics"
    trial_id: Word
    name: Word = Field(
        description="loss, validation_loss, validation_<metric>, own_<number>, learning_rate, density, bytes_sent, "
        "memory_bytes, ..."
    )
    steps: Annotated[tuple[Count, ...], FailFast()] = Field(description="committed steps")
    seconds: Annotated[tuple[float, ...], FailFast()] = Field(description="training clock")
    values: Annotated[tuple[float | None, ...], FailFast()]


class ProbeResult(BaseModel):
    """A candidate of a stage's search, and what it measured: as it is reported, and as it is shown."""

    probe_id: Word
    learning_rate: float
    level: float | None
    values: FurtherValues = Field(default_factory=dict, description="what else is searched")
    origin: Word
    num_steps: Count
    seconds: float
    ended_s: float | None = Field(None, description="training clock when its end was told; null: not known")
    bytes_sent: Count
    density: float | None
    loss: float | None = Field(description="mean training loss of the last half; null: diverged")
    forecast: float | None = None
    forecast_std: float | None = None
    status: Word = "ok"


class ProbeDone(Record, ProbeResult):
    """A probe; reported when it ends, and again with its forecast when the stage is decided."""

    kind: Literal["probe"] = "probe"
    trial_id: Word
    stage: Count


class StageOutcome(BaseModel):
    """The values of a stage, why, and what its search cost: as they are reported, and as they are shown."""

    trial_id: Word
    stage: Count
    first_step: Count = Field(description="committed steps when the stage opened")
    learning_rate: float
    level: float | None
    values: FurtherValues = Field(default_factory=dict, description="what else is searched")
    reason: Reason
    switched: StrictBool
    probability: float | None
    forecast: float | None
    forecast_std: float | None
    search_seconds: float
    search_steps: Count
    search_bytes: Count


class StageDecided(Record, StageOutcome):
    kind: Literal["stage_decided"] = "stage_decided"
    decision: Decision = Field(description="all of it, as the controller gave it")


class ScheduleEntry(Record):
    """Values of the committed line from `step` on; the rate goes linearly to `final_learning_rate` if given."""

    step: Count
    num_steps: Count
    learning_rate: float
    final_learning_rate: float | None = None
    piece_steps: int | None = Field(
        None, description="steps until the rate is the final one, where the run left that way earlier"
    )
    level: float | None = None
    values: FurtherValues = Field(default_factory=dict, description="what else was searched")
    density: float | None = Field(None, description="measured mean")
    threshold: float | None = Field(None, description="in force at the end")
    reason: Reason = ""
    steered_by: tuple[str, ...] = Field((), description="people whose pins and vetoes held")

    @property
    def last_learning_rate(self) -> float:
        """The rate of the entry's last step."""
        last = (self.piece_steps or self.num_steps) - 1
        if self.final_learning_rate is None or last <= 0:
            return self.learning_rate
        part = (self.num_steps - 1) / last
        return self.learning_rate + (self.final_learning_rate - self.learning_rate) * part


class OptionBill(Record):
    """The cost of one option's steps on the clock under `exchange: {kind: auto}`, in all lanes together."""

    steps: Count = Field(0, description="probes', and of commits that were rolled back, among them")
    steps_search: Count = Field(0, description="of probes that did not stay")
    bytes_sent: Count = Field(0, description="by the steps themselves; evaluations and discarded first steps send too")
    seconds: float = Field(0.0, description="of the steps themselves")


class Bill(Record):
    """The bill of a trial. Bytes are those of one worker unless said otherwise."""

    bytes_sent: Count = Field(0, description="search included; between nodes where workers share one: their leader's")
    bytes_of_all: Count | None = Field(
        None,
        description="sent by all workers of all lanes, but for a second line and recoveries; null: written by an "
        "earlier release",
    )
    bytes_search: Count = 0
    bytes_by_purpose: dict[str, Count] = Field(default_factory=dict)
    bytes_within_nodes: Count = Field(0, description="to workers of the same node; not in `bytes_sent` or the budget")
    bytes_dense: Count = Field(0, description="what the same steps would have sent without compression")
    saved_bytes: Count = Field(0, description="most that a worker kept for backward in a step, parameters apart")
    memory_bytes: Count = Field(
        0, description="peak memory of the worker that needed most: of its GPU, else of its process; 0: not measured"
    )
    seconds_search: float = 0.0
    seconds_training: float = Field(0.0, description="the whole training clock, search included")
    seconds_of_workers: float | None = Field(
        None,
        description="worker-seconds: the training clock times the workers held; null: written by an earlier release",
    )
    seconds_evaluation: float = 0.0
    seconds_checkpoint: float = 0.0
    steps_timed: Count = Field(0, description="whose time is split below, probes' included; 0: it was not measured")
    seconds_compute: float = Field(0.0, description="of these steps: forward, backward, update; mean over workers")
    seconds_exposed: float = Field(
        0.0, description="of these steps: waiting for the exchange, or inside an average; with `seconds_compute` all"
    )
    seconds_compress: float = Field(
        0.0, description="the exchange's own work in these steps, of which backward may hide a part"
    )
    seconds_wire: float = Field(
        0.0, description="inside collectives in these steps, waits for others included; backward may hide a part"
    )
    steps: Count = Field(0, description="committed")
    steps_search: Count = 0
    steps_taken_back: Count = Field(0, description="of commits that diverged or were rolled back")
    steps_insurance: Count = Field(
        0, description="of the line that trained the user's own schedule beside the main one"
    )
    bytes_insurance: Count = Field(0, description="sent by it; not in `bytes_sent` or the budget, which it has again")
    repairs: Count = Field(0, description="times that lost workers, or their connection, were replaced")
    seconds_recovery: float = Field(0.0, description="spent on that, lost work included; not on the training clock")
    bytes_recovery: Count = Field(
        0, description="sent in lost and in replayed steps; not in `bytes_sent` or the budget"
    )
    absences: dict[Count, Count] = Field(
        default_factory=dict, description="averages that each worker missed, by its rank; none where none may be away"
    )
    steps_by_workers: dict[Count, Count] = Field(
        default_factory=dict,
        description="all steps taken, by how many workers were there; probes that train alone count as a round of all",
    )
    by_option: dict[str, OptionBill] = Field(default_factory=dict, description="where exchanges compete: each one's")


class Billed(Record):
    """The bill of a trial up to now; the next one replaces it."""

    kind: Literal["billed"] = "billed"
    trial_id: Word
    bill: Bill


class StageClosed(Record):
    """The one report that is waited for: from here on a later attempt can go on."""

    kind: Literal["stage_closed"] = "stage_closed"
    trial_id: Word
    stage: Count
    step: Count = Field(description="committed steps after it")
    num_steps: Count = Field(description="committed in this stage; 0: it was rolled back")
    density: float | None
    threshold: float | None
    loss: float | None = Field(
        None, description="median training loss of its end, which was forecast; null: it diverged"
    )
    bill: Bill = Field(description="so far, search included")
    resume: dict[str, Any] = Field(description="`service.cluster.resume.Resume`; opaque here")


class Checkpointed(Record):
    """A checkpoint inside a commit: a later attempt goes on from here, and with a larger budget if it is `steady`."""

    kind: Literal["checkpoint"] = "checkpoint"
    trial_id: Word
    stage: Count = Field(description="the open stage")
    step: Count = Field(description="committed steps it holds")
    bill: Bill = Field(description="so far, search included")
    resume: dict[str, Any]
    steady: StrictBool = Field(
        False, description="nothing up to here depends on where the budget ends; what follows does"
    )


class Searched(Record):
    """A search as far as its probes have ended; a later attempt makes none of them again."""

    kind: Literal["searched"] = "searched"
    trial_id: Word
    stage: Count = Field(description="the open stage, which is not decided yet")
    step: Count = Field(description="committed steps at its start")
    probes: tuple[str, ...] = Field(description="ids of those that have ended")
    bill: Bill = Field(description="so far, these probes included")
    resume: dict[str, Any]


class Divergence(Record):
    """The step whose loss or gradient was not finite, and the learning rate that was in force."""

    step: Count = Field(description="committed steps before it; 0: before any update")
    learning_rate: float = Field(description="that the stage began with")
    learning_rates: tuple[float, ...] = Field(
        (), description="of the commits that diverged one after the other, where a lower rate did not help"
    )


class RungReached(Record):
    """A trial's first evaluation behind a rung; the answer says whether it goes on."""

    kind: Literal["rung"] = "rung"
    trial_id: Word
    rung: Count = Field(description="counts from 0")
    step: Count = Field(description="committed steps")
    seconds: float = Field(description="training clock")
    bytes_sent: Count = Field(description="by one worker so far")
    value: float | None = Field(description="of the objective's metric; null: it was not finite")


class SampleDrawn(Record):
    """The values of a sample that were learned from the trials before it; it trains once they are stored."""

    kind: Literal["sample"] = "sample"
    trial_id: Word
    values: SampleValues
    drawn_by: str = Field(max_length=40)
    only_if_new: StrictBool = Field(
        False, description="not stored where another sample of the job has these values, as the next brief shows"
    )


#: A hash in hexadecimal digits.
SHA256 = "^[0-9a-f]{64}$"


class RunEnd(BaseModel):
    """The end of a run, and the state that gave the weights: as they are reported, and as they are shown."""

    exported_step: Count | None = Field(None, description="committed steps behind the weights; null: all of them")
    averaged: StrictBool = Field(False, description="the weights are an average over the steps behind them")
    end_validation_loss: float | None = Field(
        None,
        description="of the weights at the run's end, where an earlier checkpoint or an average was better",
    )
    end_validation_metrics: dict[str, float | None] = Field(default_factory=dict, description="the same, by name")
    test: dict[str, float | None] = Field(
        default_factory=dict,
        description="the weights' `loss` and metrics on the workload's test set, on which nothing was chosen; "
        "{}: it has none",
    )
    test_failure: Reason | None = Field(None, description="why the test set could not be evaluated; null: it could")
    last_weights_url: str | None = Field(None, description="those at the run's end, in the same case")
    weights_sha256: str | None = Field(None, pattern=SHA256, description="of the weights' file; null: not known")
    last_weights_sha256: str | None = Field(None, pattern=SHA256, description="of those of the end, the same")
    ended_early: bool = Field(False, description="the job's patience was at its end before the budget was")
    at_target: bool = Field(False, description="the run ended with an evaluation as good as `objective.target`")
    stopped: bool = Field(False, description="by the user, or at a rung, before it had spent its budget")
    divergence: Divergence | None = Field(None, description="of a run that diverged")


class Origin(Record):
    """The releases, the data and the weights of a run's result."""

    versions: dict[str, str] = Field(description="of wiretune, torch and python, where it trained")
    fingerprint: str = Field(description="hash of the first weights, and of the data's sizes and version")
    weights: str | None = Field(None, description="SHA-256 of the weights file")
    averaged: StrictBool = Field(False, description="they are an average over the last steps")


class TrialFinished(Record, RunEnd):
    kind: Literal["trial_finished"] = "trial_finished"
    trial_id: Word
    outcome: Literal["completed", "diverged"]
    line: Line = Field("main", description="whose weights, schedule and losses these are")
    validation_loss: float | None
    validation_metrics: dict[str, float | None] = Field(default_factory=dict)
    schedule: tuple[ScheduleEntry, ...] = Field(description="that led to the weights")
    bill: Bill
    weights_url: str | None
    origin: Origin | None = Field(None, description="null: a driver of an earlier release does not say")


class TrialFailed(Record):
    """The end of a sample that failed as it would fail again; the other trials go on."""

    kind: Literal["trial_failed"] = "trial_failed"
    trial_id: Word
    reason: Reason


class AttemptFinished(Record):
    kind: Literal["attempt_finished"] = "attempt_finished"
    outcome: Literal["succeeded", "failed", "cancelled", "paused"]
    reason: Reason = ""
    retry: StrictBool = Field(True, description="of a failed one: whether another attempt may do better")


AnyRecord = Annotated[
    TrialStarted
    | MetricPoints
    | ProbeDone
    | StageDecided
    | Billed
    | StageClosed
    | Checkpointed
    | Searched
    | RungReached
    | SampleDrawn
    | TrialFinished
    | TrialFailed
    | AttemptFinished,
    Field(discriminator="kind"),
]


class Batch(Record):
    """`sequence` counts from 1 within its stream. An empty batch of the driver renews the lease."""

    schema_version: Literal[1] = SCHEMA_VERSION
    stream: Word
    sequence: Count = Field(ge=1)
    records: Annotated[tuple[AnyRecord, ...], FailFast()] = Field((), max_length=MAX_RECORDS)


class Lease(Record):
    """The driver's heartbeat, with or without records."""

    schema_version: Literal[1] = SCHEMA_VERSION
    held_s: float = Field(
        0.0, ge=0, description="how long the driver has lived, by a clock that nobody sets: it holds the job's workers"
    )


class Acknowledgement(Record):
    sequence: Count = Field(description="last batch of the stream that is stored")
    control: Control
    steers: tuple[Steer, ...] = Field((), description="that hold for the stream's trial from its next stage on")


class Sample(Record):
    """A trial of a sweep, and the values that it sets in the job."""

    number: Count = Field(description="counts from 0 within its job")
    values: SampleValues | None = Field(description="by path; null: not drawn yet, it learns from those before it")
    drawn_by: str | None = Field(description="sobol, random, qLogNEI or qLogNEHVI; null: not drawn yet")


class MarkPoint(Record):
    """A sample's measurement at a share of its budget; less is better in both."""

    values: SampleValues
    share: float
    value: float | None = Field(description="null: it diverged or failed, or was not finite")
    cost: float | None = None


class ResumePoint(Record):
    """The point that a trial resumes from, and what past jobs know."""

    trial_id: str
    finished: StrictBool
    resume: dict[str, Any] | None
    prior: Prior = Field(NO_PRIOR, description="the past searches that its controller may learn from")
    steers: tuple[Steer, ...] = Field((), description="that hold for it from its next stage on")
    sample: Sample | None = Field(None, description="the values that it sets in the job; null: it is an arm's")
    pruned: StrictBool = Field(False, description="it was behind at a rung: it ends where it is")
    stopped: StrictBool = Field(
        False, description="a person stopped it: it ends where it is, and is left out if it has no checkpoint"
    )


class StartingWeights(Record):
    """The file of weights that a job starts from because another job has exported it."""

    named: JobWeights = Field(description="the weights, as the job names them")
    url: str
    sha256: str | None = Field(None, pattern=SHA256, description="of the file; null: not known")


class AttemptBrief(Record):
    """The brief that a fresh attempt asks the API for."""

    job_id: str
    number: Count
    spec: StoredJob
    storage_url: str = Field(description="this attempt writes below it, reads anywhere in the job's folder")
    storage_mark: str | None = Field(None, description="file that all machines must see; null: nothing tells of that")
    lease_s: float
    renew_s: float
    max_silence_s: float
    control: Control
    trials: tuple[ResumePoint, ...] = ()
    trials_at_once: int | None = Field(None, description="that the queue has given room; null: as the driver finds")
    num_workers: Annotated[int, Field(ge=1)] | None = Field(
        None, description="of each lane, which the queue has given room; null: as the job says"
    )
    seen: tuple[MarkPoint, ...] = Field((), description="what the sweep's samples measured, where later ones learn")
    starting_weights: tuple[StartingWeights, ...] = Field((), description="that other jobs have exported")
