"""`wiretune compare`: the differences between jobs, and their results."""

import json
from collections.abc import Iterator, Mapping
from string import ascii_uppercase
from typing import Any

import typer

from api.cli import figures
from api.cli.report import tested
from api.cli.sheet import Sheet
from api.cli.terminal import AsJson, JobIds, Key, Url, console, fail, open_client, print_json, say
from api.display import duration, trial_name
from service.job.parts import LOSS
from service.wire.comparison import Comparison

app = typer.Typer()


@app.command()
def compare(jobs: JobIds, url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """Show in which fields jobs differ, and their results side by side."""
    with open_client(url, key) as client:
        ids = list(dict.fromkeys(map(client.find, jobs)))
        if not 2 <= len(ids) <= len(ascii_uppercase):
            fail(f"compare takes from two to {len(ascii_uppercase)} different jobs, got {len(ids)}")
        found = client.comparison(ids[0], ids[1:])
    if as_json:
        print_json(found)
        return
    out = console()
    for sheet in sheets(found):
        out.print(sheet)
    if not found.differences:
        say(out, "the jobs ask for the same")


def sheets(found: Comparison) -> Iterator[Sheet]:
    """Yield the jobs, one letter each, then the fields in which they differ, then their trials."""
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
    target = [] if found.target is None else [f"to the median end, {of}{figures.loss(found.target)}"]
    on_test = tested([each.trial for each in found.trials])
    columns = ("val. loss", *metrics, *(f"test {name}" for name in on_test), "sent", "training", *target)
    sheet = Sheet("", "trial", *columns, title="Results", left=("", "trial"))
    for job_id, trial, seconds in ((each.job_id, each.trial, each.seconds_to_target) for each in found.trials):
        sheet.add_row(
            letters[job_id],
            trial_name(trial, specs[job_id]),
            figures.loss(trial.validation_loss),
            *(figures.loss(trial.validation_metrics.get(name)) for name in metrics),
            *(figures.loss(trial.test.get(name)) for name in on_test),
            figures.size(trial.bill.bytes_sent),
            duration(trial.bill.seconds_training),
            *("-" if seconds is None else duration(seconds) for _ in target),
        )
    return sheet
