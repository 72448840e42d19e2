"""`wiretune`: the service and its jobs from a terminal. This module has the commands for this machine."""

import io
import json
import logging
import os
import sys
from functools import partial
from importlib.metadata import version
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from api.cli import (
    access_commands,
    check_command,
    code_commands,
    compare_command,
    export_command,
    exports,
    init_command,
    job_commands,
    method_commands,
    plot,
    prediction_commands,
    queue_commands,
    report,
    stop_command,
    verb_commands,
    wait_command,
)
from api.cli.demo import DEFAULT_SECONDS, demo_job, introduction
from api.cli.job_commands import print_result, require_success
from api.cli.job_file import JobName, NewLabels, Sets, put_changes, read_job
from api.cli.panels import Panels
from api.cli.terminal import (
    FAILED,
    INTERRUPTED,
    STANDARD,
    AsJson,
    JobFile,
    console,
    fail,
    note_json,
    print_advice,
    print_json,
    read_settings,
    require_writable,
    say,
    told_plainly,
    warn,
)
from api.client import Client
from search.schedule_file import RecordedSchedule
from service import log_lines, tracing
from service.job.advice import advice
from service.job.replay import differences, replayed
from service.job.spec import JobSpec
from service.log_lines import LogFormat, LogLevel
from service.wire.jobs import JobView

DEMO_LINGER_S = 600.0
#: The size at which the service's log file is rotated, and how many old files are kept.
LOG_BYTES, NUM_OLD_LOGS = 10_000_000, 3
MAX_SECONDS = 1e9  # the largest budget

app = typer.Typer(
    cls=Panels,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"wiretune {version('wiretune')}")
        raise typer.Exit


@app.callback()
def main(
    is_asked: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Tunes learning rate and gradient sparsity while a model trains over a slow network."""
    note_json(False)  # not every command has the option
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")  # a name that the terminal cannot show must not fail


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="address to bind (WIRETUNE_HOST)")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="port; 0: any free one (WIRETUNE_PORT)")] = None,
    linger: Annotated[
        float | None, typer.Option(help="exit after this many seconds without a request or an active job")
    ] = None,
) -> None:
    """Run the service: the API, the page, and the control of jobs."""
    from api.http.server import (
        PortBusy,
        serve as serve_until_told,  # imported here, since other commands need no web stack
    )

    settings = read_settings(host=host, port=port)
    configure_logging(settings.log_file, settings.log_format, settings.log_level)
    with told_plainly():
        try:
            tracing.configure("wiretune-api")
        except ImportError as error:
            fail(str(error))
        try:
            serve_until_told(settings, linger_s=linger)
        except PortBusy as error:
            fail(str(error))


@app.command()
def run(
    job: JobFile, sets: Sets = None, name: JobName = None, labels: NewLabels = None, as_json: AsJson = False
) -> None:
    """Run a job here, from start to bill. Starts a service if none runs, and stops it unless other jobs need it.

    A `workload.factory` is imported from the working folder.
    """
    spec = read_job(job, put_changes({}, sets=sets, name=name, labels=labels)).resolved(str(Path.cwd()))
    print_advice(advice(spec))
    if url := os.environ.get("WIRETUNE_URL"):
        warn(f"`run` trains here, whatever WIRETUNE_URL says; `wiretune submit` has the job trained at {url}")
    _run_here(spec, as_json=as_json)
    if not as_json:
        say(
            console(),
            f"Results are in {read_settings().state_dir}: `wiretune serve` brings page, `export`, `logs` back.",
        )


@app.command()
def replay(
    schedule: Annotated[Path, typer.Argument(metavar="SCHEDULE.json", help="as `wiretune export` wrote it")],
    out: Annotated[Path | None, typer.Option(help="write the weights here", callback=require_writable)] = None,
    as_json: AsJson = False,
) -> None:
    """Repeat the run of a learned schedule without a search, and compare the final weights bit for bit.

    On CPUs they are equal with the same releases and data, for budgets in steps or bytes.
    """
    from api.cli.runs import Interrupted, Run  # needs what the service runs on

    try:
        recorded = RecordedSchedule.from_json(schedule.read_text(encoding="utf-8"))
        spec = replayed(recorded)
    except OSError as error:
        fail(f"cannot read the schedule {schedule}: {error.strerror}")
    except (ValidationError, ValueError) as error:
        fail(f"{schedule} cannot be replayed: {_told(error)}")
    if not recorded.complete:
        warn(
            "the run had not ended when its schedule was exported: behind its last checkpoint the replay trains by "
            "what was decided, without ramps, not by what was trained"
        )
    with told_plainly():
        try:
            Run(read_settings(), console(as_json=as_json, is_lasting=True)).run(
                spec, at_end=partial(_compare, recorded, out=out, as_json=as_json)
            )
        except Interrupted as error:
            fail(str(error), code=INTERRUPTED)


def _told(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    return f"{'/'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}"


def _compare(recorded: RecordedSchedule, client: Client, view: JobView, *, out: Path | None, as_json: bool) -> None:
    """Print the result of a replay next to that of the schedule's own run."""
    require_success(view)
    before, now = recorded.provenance, client.schedule(view.id).provenance
    assert before is not None and now is not None
    is_equal = None if before.weights is None else before.weights == now.weights
    if out is not None:
        with exports.writing(out), exports.output(out) as file:
            client.save_weights(view.id, file)
    if as_json:
        print_json({"job": view.id, "equal": is_equal, "before": before, "now": now})
    else:
        say(console(), differences(before, now))
    if is_equal is False:
        raise typer.Exit(FAILED)


@app.command()
def demo(
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="write the result here; `-`: standard output", callback=require_writable),
    ] = None,
    seconds: Annotated[float, typer.Option(help="training seconds per arm", min=1, max=MAX_SECONDS)] = DEFAULT_SECONDS,
) -> None:
    """Show a real job: tuned and dense arms on an emulated slow link."""
    spec = demo_job(seconds)
    out = console(as_json=json_file == STANDARD)
    for line in introduction(spec):
        say(out, line)
    page = _run_here(spec, linger_s=DEMO_LINGER_S, json_file=json_file)
    minutes = f"{DEMO_LINGER_S / 60:.0f} minutes"
    say(out, f"page: {page}")
    say(out, f"A service started here stays up for {minutes} after its last visitor; `wiretune stop` ends it.")


app.add_typer(code_commands.app)
app.add_typer(job_commands.app)
app.add_typer(wait_command.app)
app.add_typer(export_command.app)
app.add_typer(verb_commands.app)
app.add_typer(stop_command.app)
app.add_typer(method_commands.app)
app.add_typer(compare_command.app)
app.add_typer(plot.app)
app.add_typer(check_command.app)
app.add_typer(prediction_commands.app)
app.add_typer(init_command.app)
app.add_typer(access_commands.app)
app.add_typer(queue_commands.app)


def _run_here(
    spec: JobSpec, *, linger_s: float | None = None, json_file: Path | None = None, as_json: bool = False
) -> str:
    """Run `spec` on this machine's server, print its result, and return the address of its page.

    With `as_json` the result goes to standard output as JSON; the demonstration's goes to `json_file`.
    """
    from api.cli.runs import Interrupted, Run  # needs what the service runs on

    out = console(as_json=as_json or json_file == STANDARD, is_lasting=True)

    def at_end(client: Client, view: JobView) -> None:
        found = report.result(client, view, with_all_schedules=as_json)
        if as_json:
            print_json(found)
        require_success(view)
        if not as_json and json_file != STANDARD:
            print_result(found)
        if json_file == STANDARD:
            print_json(report.summary(found))
        elif json_file is not None:
            json_file.write_text(json.dumps(report.summary(found), indent=2) + "\n", encoding="utf-8")
            say(console(), f"wrote {json_file}")

    with told_plainly():
        try:
            here = Run(read_settings(), out, linger_s=linger_s)
            here.run(spec, at_end=at_end)
        except Interrupted as error:
            fail(str(error), code=INTERRUPTED)
    return here.page


def configure_logging(
    file: Path | None, log_format: LogFormat = LogFormat.TEXT, level: LogLevel = LogLevel.INFO
) -> None:
    """Log the service to standard error or `file`; for its own requests, log only failures."""
    try:
        handlers = [RotatingFileHandler(file, maxBytes=LOG_BYTES, backupCount=NUM_OLD_LOGS)] if file else None
    except OSError as error:
        fail(f"cannot log into {file}: {error.strerror}; check WIRETUNE_LOG_FILE")
    log_lines.configure(log_format, "%(asctime)s %(levelname)s %(name)s: %(message)s", handlers=handlers)
    for name in ("wiretune", "service", "api"):
        logging.getLogger(name).setLevel(level.upper())


if __name__ == "__main__":
    app()
