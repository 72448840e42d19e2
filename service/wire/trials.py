"""Views of a job's trials: the trial, its stages with their probes, its series and schedule; and a job's attempts."""

from datetime import datetime

from pydantic import Field

from search.schedule_file import FORMAT, Provenance
from search.types import Posterior, Refusal, Steer, Tax
from service.job.parts import Direction
from service.job.states import ACTIVE, TERMINAL, JobState
from service.wire.base import View
from service.wire.records import Bill, Line, ProbeResult, RunEnd, Sample, ScheduleEntry, StageOutcome

#: Outcomes of a trial that did not complete.
UNSUCCESSFUL = frozenset({"diverged", "failed"})


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
    outcome: str | None = Field(description="completed, diverged, of a sample also failed; null: not finished")
    failure: str | None = Field(None, description="why it failed; null: it did not")
    stopped_by: str | None = Field(None, description="who stopped it alone, before its budget was spent; null: nobody")
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

    @property
    def end(self) -> str | None:
        """The way it ended: its outcome, or `stopped` where a person ended it early; None: it has not finished."""
        return "stopped" if self.outcome == "completed" and self.stopped_by is not None else self.outcome

    def phase(self, state: JobState) -> str:
        """Return how the trial ended, or while it has not, whether it trains in a job of this `state`."""
        if self.end is not None:
            return self.end
        if state in TERMINAL:
            return "not finished"
        if self.backend is None:
            return "waiting"
        if state == JobState.PAUSED:
            return "paused"
        # A trial that has trained before waits while its job waits.
        return "training" if state in ACTIVE and state != JobState.STARTING else "waiting"


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


class SeriesExtent(View):
    """The number of points that one metric of one trial has, and the last of them."""

    trial_id: str
    arm: str
    seed: int
    name: str = Field(description="as in `GET /v1/jobs/{job}/metrics/{name}`")
    num_points: int
    last_step: int | None = Field(description="null: there are no points yet")
    last_value: float | None = Field(description="null: there are no points yet, or it was not finite")


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


class AttemptView(View):
    """A life of a job on the cluster: from its workers' start to a pause, an end, or a fault."""

    number: int
    began_at: datetime
    ended_at: datetime | None = Field(description="null: it lives")
    outcome: str | None = Field(description="succeeded, failed, cancelled, paused; null: it lives")
    reason: str
    workers: int | None = Field(None, description="of all training runs that go on at a time; null: it is not known")
