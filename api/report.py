"""The end of a job: learned schedules, the bill, and who reached which loss first."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from pydantic import BaseModel
from rich import box
from rich.table import Table

from api import figures
from api.client import ApiError, Client
from api.watch import trial_name
from service.records import Bill, ScheduleEntry
from service.spec import JobSpec
from service.views import JobView, ScheduleView, Series, TrialView


class Crossing(BaseModel):
    """When a trial first reached the validation loss another ended at; seconds on each training clock."""

    loss: float
    seconds: float | None  # null: never
    other_seconds: float


class TrialReport(BaseModel):
    """One trial's result."""

    name: str
    controller: str
    trial: TrialView
    schedule: tuple[ScheduleEntry, ...]
    overtaken: Crossing | None = None  # by the first arm, where this is another

    def as_json(self) -> dict[str, Any]:
        """Return what a script wants to read."""
        bill = self.trial.bill
        return {
            "controller": self.controller,
            "schedule": [entry.model_dump(mode="json") for entry in self.schedule],
            "bytes_sent": bill.bytes_sent,
            "bytes_dense": bill.bytes_dense,
            "seconds_search": bill.seconds_search,
            "seconds_training": bill.seconds_training,
            "steps": bill.steps,
            "validation": {"loss": self.trial.validation_loss, **self.trial.validation_metrics},
            "crossing": None if self.overtaken is None else self.overtaken.model_dump(),
        }


def crossing(first: Series, other: Series) -> Crossing | None:
    """Return when `first` reached the last value of `other`; None where `other` has no value."""
    ends = [(seconds, value) for seconds, value in zip(other.seconds, other.values, strict=True) if value is not None]
    if not ends:
        return None
    other_seconds, loss = ends[-1]
    reached = (
        seconds
        for seconds, value in zip(first.seconds, first.values, strict=True)
        if value is not None and value <= loss
    )
    return Crossing(loss=loss, seconds=next(reached, None), other_seconds=other_seconds)


def reports(client: Client, job: JobView) -> list[TrialReport]:
    """Return one report per trial of a finished job, in its order."""
    curves = {series.trial_id: series for series in client.metrics(job.id, "validation_loss", max_points=10_000)}
    trials = client.trials(job.id)
    firsts = {trial.seed: curves[trial.trial_id] for trial in trials if trial.arm == job.spec.arms[0].name}
    kinds = {(each.arm, each.seed): each.controller.kind for each in job.spec.trials()}
    return [
        TrialReport(
            name=trial_name(trial, job.spec),
            controller=kinds[trial.arm, trial.seed],
            trial=trial,
            schedule=_schedule(client, job.id, trial),
            overtaken=None
            if trial.arm == job.spec.arms[0].name
            else crossing(firsts[trial.seed], curves[trial.trial_id]),
        )
        for trial in trials
    ]


def _schedule(client: Client, job_id: str, trial: TrialView) -> tuple[ScheduleEntry, ...]:
    try:
        view: ScheduleView = client.schedule(job_id, arm=trial.arm, seed=trial.seed)
    except ApiError as error:
        if error.status != 404:
            raise
        return ()  # it ended before its first decision
    return view.entries


def schedule_table(report: TrialReport) -> Table:
    """Return the learned schedule for a terminal; a stage's ramps are one row."""
    table = _table(f"Schedule of {report.name}", "steps", "learning rate", "density", "threshold", "reason")
    for _, group in groupby(report.schedule, key=lambda entry: (entry.reason, entry.level)):
        entries = list(group)
        first, last = entries[0], entries[-1]
        final = last.learning_rate if last.final_learning_rate is None else last.final_learning_rate
        rate = figures.number(first.learning_rate)
        table.add_row(
            f"{first.step}-{last.step + last.num_steps}",
            rate if final == first.learning_rate else f"{rate} -> {figures.number(final)}",
            figures.share(_mean_density(entries)),
            figures.number(last.threshold),
            first.reason,
        )
    return table


def _mean_density(entries: Sequence[ScheduleEntry]) -> float | None:
    known = [(entry.density, entry.num_steps) for entry in entries if entry.density is not None]
    total = sum(num_steps for _, num_steps in known)
    return sum(density * num_steps for density, num_steps in known) / total if total else None


def bill_table(found: list[TrialReport], spec: JobSpec) -> Table:
    """Return every trial's bill for a terminal; bytes are one worker's."""
    link = f"emulated {spec.link.mbps:g} Mbit link" if spec.link.mode == "emulate" else "the network as it is"
    metrics = sorted({name for report in found for name in report.trial.metric_directions})
    table = _table(f"Bill ({link})", "trial", "sent", "dense", "ratio", "search", "training", "val. loss", *metrics)
    for report in found:
        bill = report.trial.bill
        table.add_row(
            report.name,
            figures.size(bill.bytes_sent),
            figures.size(bill.bytes_dense),
            _ratio(bill),
            f"{bill.seconds_search:.1f} s",
            f"{bill.seconds_training:.1f} s",
            figures.loss(report.trial.validation_loss),
            *(figures.loss(report.trial.validation_metrics.get(name)) for name in metrics),
        )
    return table


def crossing_lines(found: list[TrialReport]) -> Iterator[str]:
    """Yield, per trial of the other arms, when the first arm got to where that one ended."""
    first = found[0].trial.arm
    for report in found:
        overtaken = report.overtaken
        if overtaken is None:
            continue
        goal = f"the loss at which {report.name} ended ({figures.loss(overtaken.loss)})"
        if overtaken.seconds is None:
            yield f"{first} did not reach {goal}"
        else:
            seconds = f"{overtaken.seconds:.1f} s instead of {overtaken.other_seconds:.1f} s"
            yield f"{first} reached {goal} after {seconds}"


def as_json(found: list[TrialReport]) -> dict[str, Any]:
    """Return the whole result for a script: the first trial's at the top, then every trial's by name."""
    return found[0].as_json() | {"arms": {report.name: report.as_json() for report in found}}


def _ratio(bill: Bill) -> str:
    return "-" if not bill.bytes_sent else f"{bill.bytes_dense / bill.bytes_sent:.1f}x"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for column in columns:
        is_text = column in ("trial", "reason")
        table.add_column(column, justify="left" if is_text else "right", no_wrap=column != "reason")
    return table
