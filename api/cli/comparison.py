"""`wiretune compare`: where jobs differ, and what came of that."""

import json
from collections.abc import Iterator, Mapping, Sequence
from string import ascii_uppercase
from typing import Any

import typer
from pydantic import BaseModel

from api.cli import figures
from api.cli.sheet import Sheet
from api.cli.terminal import AsJson, JobIds, Key, Url, console, fail, open_client, print_json, say
from api.cli.watch import trial_name
from api.client import Client
from service.job.changes import differences
from service.job.parts import LOSS, Direction
from service.job.spec import JobSpec
from service.wire.views import JobReport, JobView, TrialReport

app = typer.Typer()


class Difference(BaseModel):
    """A field in which the jobs differ, with its value in each of them, in their order."""

    pointer: str
    values: tuple[Any, ...]


class ComparedTrial(BaseModel):
    """A trial of one of the jobs, and when it was first as good as the target."""

    job_id: str
    trial: TrialReport
    seconds_to_target: float | None


class Comparison(BaseModel):
    """Several jobs side by side. The target is the worst value at which their trials ended.

    It is of the metric that the objectives of all of them name, else of the loss.
    """

    jobs: tuple[JobView, ...]
    differences: tuple[Difference, ...]
    metric: str
    target: float | None
    target_loss: float | None
    trials: tuple[ComparedTrial, ...]


@app.command()
def compare(jobs: JobIds, url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """Show in which fields jobs differ, and their results side by side."""
    with open_client(url, key) as client:
        ids = list(dict.fromkeys(map(client.find, jobs)))
        if not 2 <= len(ids) <= len(ascii_uppercase):
            fail(f"compare takes from two to {len(ascii_uppercase)} different jobs, got {len(ids)}")
        found = comparison(client, ids)
    if as_json:
        print_json(found)
        return
    out = console()
    for sheet in _sheets(found):
        out.print(sheet)
    if not found.differences:
        say(out, "the jobs ask for the same")


def comparison(client: Client, job_ids: Sequence[str]) -> Comparison:
    """Return the jobs side by side, by the losses that they report, thinned as the API thins them."""
    from service.control.report import final, reached  # scipy, which no other command needs

    reports = [client.report(each) for each in job_ids]
    metric = _metric(reports)
    direction: Direction = next(
        (each.metric_directions[metric] for each in reports if metric in each.metric_directions), "min"
    )
    name = f"validation_{metric}"
    curves = {curve.trial_id: curve for each in job_ids for curve in client.metrics(each, name)}
    trials = [(each.job_id, trial) for each in reports for trial in each.trials]
    lasts = [final(curves[trial.trial_id]) for _, trial in trials if trial.outcome != "diverged"]
    worst = max if direction == "min" else min
    target = worst((last[1] for last in lasts if last is not None), default=None)
    jobs = tuple(client.job(each).view for each in job_ids)
    return Comparison(
        jobs=jobs,
        differences=tuple(_differences([job.spec for job in jobs])),
        metric=metric,
        target=target,
        target_loss=target if metric == LOSS else None,
        trials=tuple(
            ComparedTrial(
                job_id=job_id,
                trial=trial,
                seconds_to_target=None if target is None else reached(curves[trial.trial_id], target, direction),
            )
            for job_id, trial in trials
        ),
    )


def _metric(reports: Sequence[JobReport]) -> str:
    """Return the metric that all jobs are about and have measured; else the loss."""
    named = reports[0].metric
    have_it = all(
        each.metric == named and any(named in trial.validation_metrics for trial in each.trials) for each in reports
    )
    return named if have_it else LOSS


def _differences(specs: Sequence[JobSpec]) -> Iterator[Difference]:
    first, *others = specs
    dumped = [spec.model_dump(mode="json") for spec in specs]
    for pointer in dict.fromkeys(change.pointer for other in others for change in differences(first, other)):
        yield Difference(pointer=pointer, values=tuple(_at(each, pointer) for each in dumped))


def _at(content: Any, pointer: str) -> Any:
    """Return what is at a JSON pointer; None: there is nothing."""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(content, dict):
            content = content.get(name)
        elif isinstance(content, list):
            content = content[int(name)] if int(name) < len(content) else None
    return content


def _sheets(found: Comparison) -> Iterator[Sheet]:
    """Yield the jobs with a letter for each, the fields in which they differ, and their trials."""
    letters = dict(zip((job.id for job in found.jobs), ascii_uppercase, strict=False))
    named = Sheet("", "job", "state", "name", left=("", "job", "state", "name"))
    for job in found.jobs:
        named.add_row(letters[job.id], job.id, job.state, job.name)
    yield named
    if found.differences:
        asked = Sheet("differs", *letters.values(), left=("differs", *letters.values()))
        for each in found.differences:
            asked.add_row(each.pointer, *map(_plain, each.values))
        yield asked
    yield _results(found, letters)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _results(found: Comparison, letters: Mapping[str, str]) -> Sheet:
    specs = {job.id: job.spec for job in found.jobs}
    metrics = sorted({name for each in found.trials for name in each.trial.validation_metrics})
    of = "" if found.metric == LOSS else f"{found.metric} "
    target = [] if found.target is None else [f"to {of}{figures.loss(found.target)}"]
    columns = ("val. loss", *metrics, "sent", "training", *target)
    sheet = Sheet("", "trial", *columns, title="Results", left=("", "trial"))
    for job_id, trial, seconds in ((each.job_id, each.trial, each.seconds_to_target) for each in found.trials):
        sheet.add_row(
            letters[job_id],
            trial_name(trial, specs[job_id]),
            figures.loss(trial.validation_loss),
            *(figures.loss(trial.validation_metrics.get(name)) for name in metrics),
            figures.size(trial.bill.bytes_sent),
            figures.seconds(trial.bill.seconds_training),
            *("-" if seconds is None else figures.seconds(seconds) for _ in target),
        )
    return sheet
