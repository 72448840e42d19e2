"""`wiretune export`: write a job's results to files, or for a tracker."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from api.cli import exports
from api.cli.exports import DEFAULT_NAMES, Selection, What
from api.cli.terminal import (
    STANDARD,
    AsJson,
    JobId,
    Key,
    Patience,
    Url,
    console,
    fail,
    open_client,
    print_json,
    require_writable,
    say,
    warn,
)
from api.client import Client
from api.exporters import trackers
from api.retries import AWAY_S
from service.wire.artifacts import Which

app = typer.Typer()


@app.command()
def export(
    job: JobId,
    what: Annotated[What, typer.Option(help="what to write")] = What.SCHEDULE,
    arm: Annotated[
        str | None,
        typer.Option(
            help="`best`: the best trial; default: a sweep's best, else the first; of metrics and all: every one"
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="default: the first; of metrics and all: every one")] = None,
    which: Annotated[
        Which | None, typer.Option(help="weights of the best state, or of the end; default: what the job exports")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="where to write it; `-`: standard output; metrics to a name in .parquet are Parquet, else CSV"
        ),
    ] = None,
    tracker: Annotated[
        exports.Tracker | None, typer.Option("--to", help="write every point and the bill for this tracker instead")
    ] = None,
    is_followed: Annotated[
        bool, typer.Option("--follow", "-f", help="with --to: keep writing new points until the job is over")
    ] = False,
    patience: Patience = AWAY_S,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Write results to files: the learned schedule, for any training script; every metric; weights; the report."""
    chosen, connect = Selection(job, arm, seed, which), partial(open_client, url, key, patience_s=patience)
    if tracker is not None:
        if what is not What.SCHEDULE:
            fail(f"--to writes every point and the bill, so leave out --what {what}")
        if which is not None:
            fail("--which is for weights, and --to writes every point and the bill: leave one of them out")
        if out == STANDARD:
            fail("--to writes a folder; name it with --out")
        _to_tracker(chosen, tracker, out, connect, patience_s=patience if is_followed else None, as_json=as_json)
    elif is_followed:
        fail("--follow is for a tracker; name it with --to")
    else:
        _to_files(chosen, what, out, connect, as_json=as_json)


def _to_tracker(
    chosen: Selection,
    tracker: exports.Tracker,
    out: Path | None,
    connect: Callable[[], AbstractContextManager[Client]],
    *,
    patience_s: float | None,
    as_json: bool,
) -> None:
    """Write every point and the bill of the chosen trials to the folder `out`, by default named after the tracker.

    With a patience, follow the job.
    """

    def note_failure(error: trackers.TrackerError) -> None:
        warn(f"{error}; trying again for {patience_s:g} s")

    out = out or Path(tracker)
    begin = exports.tracker(tracker, out)
    with connect() as client, exports.writing(out):
        job = client.find(chosen.job_id)
        chosen = exports.settled(client, chosen._replace(job_id=job), is_of_one=False)
        written = trackers.export(
            client,
            job,
            begin,
            arm=chosen.arm,
            seed=chosen.seed,
            follow=patience_s is not None,
            patience_s=patience_s or 0.0,
            note_failure=note_failure,
        )
        _print_runs(job, written, as_json=as_json)


def _to_files(
    chosen: Selection,
    what: What,
    out: Path | None,
    connect: Callable[[], AbstractContextManager[Client]],
    *,
    as_json: bool,
) -> None:
    """Write `what` of the chosen trials to `out`, by default under its usual name in the working folder."""
    if what is What.REPORT and (chosen.arm is not None or chosen.seed is not None):
        fail("a report is of the whole job; leave out --arm and --seed, or export --what schedule, metrics or weights")
    if chosen.which is not None and what not in (What.WEIGHTS, What.ALL):
        fail("--which is for weights; leave it out, or export --what weights")
    if what is not What.ALL:
        out = require_writable(out or Path(DEFAULT_NAMES[what]))
    elif out == STANDARD:
        fail("--what all writes a folder; name it with --out")
    with connect() as client:
        job = client.find(chosen.job_id)
        chosen, out = chosen._replace(job_id=job), out or Path(job)
        with exports.writing(out):
            written = (
                exports.write_all(client, chosen, out)
                if what is What.ALL
                else [exports.write(client, chosen, what, out)]
            )
            _print_written(job, written, as_json=as_json)


def _print_runs(job: str, exported: Iterable[trackers.Exported], *, as_json: bool) -> None:
    for run in exported:
        if as_json:
            print_json({"job": job, **run._asdict()}, indent=None)
        else:
            typer.echo(f"wrote {run.place}: {run.content}")


def _print_written(job: str, written: Iterable[exports.Written], *, as_json: bool) -> None:
    for each in written:
        if each.path == STANDARD:
            typer.echo(f"wrote {each.content}", err=True)
        elif as_json:
            size = each.path.stat().st_size
            print_json({"job": job, "path": str(each.path), "bytes": size, "content": each.content}, indent=None)
        else:
            say(console(), f"wrote {each.path}: {each.content}")
