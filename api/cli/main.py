"""`wiretune`: the service and its jobs from a terminal. This page: what happens on this machine."""

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.metadata import version
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from pydantic import ValidationError

from api.cli import (
    comparison,
    completion,
    database_commands,
    doctor,
    exports,
    job_commands,
    key_commands,
    method_commands,
    plot,
    prediction,
    queue_commands,
    rehearsal,
    report,
    template,
    verb_commands,
)
from api.cli.demo import DEFAULT_SECONDS, demo_job, introduction
from api.cli.figures import size
from api.cli.job_commands import print_result, require_success
from api.cli.local import running_server, stop_server
from api.cli.runs import Interrupted, Run
from api.cli.terminal import (
    FAILED,
    INTERRUPTED,
    STANDARD,
    AsJson,
    JobFile,
    Key,
    Url,
    console,
    fail,
    print_advice,
    print_json,
    read_job,
    read_settings,
    refusals,
    require_agreement,
    require_writable,
    say,
    warn,
)
from api.client import ApiError, Client, Unreachable
from search.schedule_file import RecordedSchedule
from service import log_lines, tracing
from service.control import cleaning
from service.control.access import LOCAL
from service.control.database import is_there
from service.control.listing import JobFilter
from service.control.store import Store
from service.errors import CodeInUse, NotFound, Unavailable
from service.job.advice import advice
from service.job.replay import differences, replayed
from service.job.spec import JobSpec
from service.job.states import TERMINAL
from service.log_lines import LogFormat
from service.settings import Settings
from service.wire.code import CodeView
from service.wire.views import JobView

DEMO_LINGER_S = 600.0
#: The service's log file is put aside when it is so large, and so many old ones are kept.
LOG_BYTES, NUM_OLD_LOGS = 10_000_000, 3
MAX_DAYS = 36_500
MAX_SECONDS = 1e9  # of a budget

app = typer.Typer(
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
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version, and end")
    ] = False,
) -> None:
    """Tunes learning rate and gradient sparsity while a model trains over a slow network."""


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="address to bind (WIRETUNE_HOST)")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="port; 0: any free one (WIRETUNE_PORT)")] = None,
    linger: Annotated[
        float | None, typer.Option(help="end after so many seconds without a request or an active job")
    ] = None,
) -> None:
    """Run the service: API, page, and the jobs' owner."""
    from api.http.server import (
        PortBusy,
        serve as serve_until_told,  # the other commands need no web stack
    )

    settings = read_settings(host=host, port=port)
    configure_logging(settings.log_file, settings.log_format)
    with refusals():
        try:
            tracing.configure("wiretune-api")
        except ImportError as error:
            fail(str(error))
        try:
            serve_until_told(settings, linger_s=linger)
        except PortBusy as error:
            fail(str(error))


@app.command()
def run(job: JobFile, as_json: AsJson = False) -> None:
    """Run a job here, from start to bill; starts a service if none is up, and stops it again.

    A `workload.factory` is imported from the working folder.
    """
    spec = read_job(job).resolved(str(Path.cwd()))
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
    """Train again what a schedule was learned in, without a search; say whether the weights are the same, bit for bit.

    They are on the CPU where releases and data are the same, for budgets in steps or bytes.
    """
    try:
        recorded = RecordedSchedule.from_json(schedule.read_text())
        spec = replayed(recorded)
    except OSError as error:
        fail(f"cannot read the schedule {schedule}: {error.strerror}")
    except (ValidationError, ValueError) as error:
        fail(f"{schedule} cannot be replayed: {_told(error)}")
    with refusals():
        try:
            Run(read_settings(), console(as_json=as_json)).run(
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
    """Print what became of a replay beside the run that the schedule is from."""
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


app.add_typer(job_commands.app)
app.add_typer(verb_commands.app)
app.add_typer(method_commands.app)
app.add_typer(comparison.app)
app.add_typer(plot.app)
app.add_typer(rehearsal.app)
app.add_typer(prediction.app)
app.add_typer(template.app)
app.add_typer(doctor.app)
app.add_typer(key_commands.app)
app.add_typer(queue_commands.app)
app.add_typer(database_commands.app)


@app.command()
def stop(
    context: typer.Context,
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="as in `show`; default: the service", autocompletion=completion.jobs),
    ] = None,
    if_version: verb_commands.IfVersion = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Finish JOB early and keep its result. Without one: stop the service of this machine, its Ray and all workers."""
    if job is not None:
        verb_commands.ask(job, partial(Client.stop, version=if_version), url=url, key=key, as_json=as_json)
        return
    if if_version is not None:
        fail("--if-version is of a job; the service has no version to compare with: leave it out, or name the job")
    sources = {name: context.get_parameter_source(name) for name in ("url", "key")}
    if any(source is not None and source.name == "COMMANDLINE" for source in sources.values()):
        fail(
            "`--url` and `--key` are for a job; without one, `stop` ends the service of this machine: leave them out, "
            "or name the job"
        )
    if url is not None:
        warn(f"`stop` without a job ends the service of this machine, whatever WIRETUNE_URL says, not that at {url}")
    with refusals():
        message = stop_server(read_settings())
    if as_json:
        print_json({"stopped": message})
    else:
        typer.echo(message)


@app.command()
def clean(
    older_than: Annotated[
        float,
        typer.Option(metavar="DAYS", min=0, max=MAX_DAYS, help="only of jobs over, or code unused, so long"),
    ] = 0.0,
    with_weights: Annotated[bool, typer.Option("--weights", help="trained weights, too")] = False,
    is_dry: Annotated[bool, typer.Option("--dry-run", help="only say what would go")] = False,
    is_agreed: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what finished jobs left: checkpoints, logs, files of killed processes; and code that no job needs.

    Says how much, then asks.

    Weights stay unless --weights is given; schedules and everything else in the database stay always.
    """
    settings = read_settings()
    before = datetime.now(UTC) - timedelta(days=older_than)
    failures: dict[str, str] = {}
    with refusals():
        found = _leftovers(settings, before, with_weights=with_weights)
        if not as_json:
            for each in found:
                typer.echo(f"{size(each.num_bytes):>9}  {each.num_files} files  {each.what}  ({each.place})")
            num_bytes, num_files = sum(each.num_bytes for each in found), sum(each.num_files for each in found)
            typer.echo(f"{size(num_bytes)} in {num_files} files" if found else "nothing is left over")
        if found and not is_dry:
            require_agreement("remove them?", is_agreed=is_agreed, may_ask=not as_json)
            over = {each.place for each in _leftovers(settings, before, with_weights=with_weights)}
            found = [each for each in found if each.place in over]  # others have been told to go on meanwhile
            found, failures = _remove(settings, found)
    total = sum(each.num_bytes for each in found)
    if as_json:
        print_json({"removed": not is_dry, "bytes": total, "leftovers": [each.model_dump() for each in found]})
    elif found and not is_dry:
        typer.echo(f"removed {size(total)}")
    if failures:
        fail("\n".join(f"not removed: {place}: {reason}" for place, reason in failures.items()), code=FAILED)


def _remove(settings: Settings, found: list[cleaning.Leftover]) -> tuple[list[cleaning.Leftover], dict[str, str]]:
    """Remove what can be removed; return it, and by its place why what stays does.

    A job is looked at right before: one that was told to go on keeps its files, and is no failure.
    """
    removed: list[cleaning.Leftover] = []
    failures: dict[str, str] = {}
    with _records(settings) as records:
        for number, each in enumerate(found):
            try:
                if each.code is not None and records is not None:
                    records.delete_code(each.code, project=each.project)
                elif each.job_id is None or records is None or records.is_over(each.job_id):
                    cleaning.remove(settings, each)
                else:
                    continue
            except Unreachable as error:  # the others are not asked for: each would wait as long
                return removed, failures | {left.place: str(error) for left in found[number:]}
            except (ApiError, CodeInUse, NotFound, Unavailable) as error:
                failures[each.place] = str(error)
            else:
                removed.append(each)
    return removed, failures


def _leftovers(settings: Settings, before: datetime, *, with_weights: bool) -> list[cleaning.Leftover]:
    with _records(settings) as records:
        finished = [] if records is None else list(cleaning.finished_jobs(records.jobs, before=before))
        code = [] if records is None else cleaning.unused_code(records.list_code(), before=before)
    return cleaning.leftovers(settings, finished, with_weights=with_weights) + code


class _Records(NamedTuple):
    """The database, as `clean` needs it."""

    jobs: cleaning.JobPages
    is_over: Callable[[str], bool]  # of a job, by its id
    list_code: Callable[[], Iterable[CodeView]]
    delete_code: Callable[..., None]  # a digest, and the `project` that has it


@contextmanager
def _records(settings: Settings) -> Iterator[_Records | None]:
    """Ask the service that runs here, or the database where none does; give None where there is no database."""
    server = running_server(settings)
    if server is not None:
        with Client(server.url, server.key) as client:
            yield _Records(
                partial(client.jobs, archived=None),
                lambda job_id: client.job(job_id).state in TERMINAL,
                client.iter_code,
                client.delete_code,
            )
    elif not is_there(settings.resolved_database_url):  # opening it would make it
        yield None
    else:
        with closing(Store.open(settings)) as store:
            yield _Records(
                partial(store.jobs, JobFilter(archived=None)),
                lambda job_id: store.job(job_id).state in TERMINAL,
                partial(_all_code, store),
                partial(store.code.remove, by=LOCAL),
            )


def _all_code(store: Store) -> Iterator[CodeView]:
    cursor: str | None = None
    while True:
        page = store.code.list(by=LOCAL, cursor=cursor)
        yield from page.packages
        if (cursor := page.next_cursor) is None:
            return


def _run_here(
    spec: JobSpec, *, linger_s: float | None = None, json_file: Path | None = None, as_json: bool = False
) -> str:
    """Run `spec` on this machine's server and print its result; return the address of its page.

    The result goes to standard output as JSON if `as_json`; the demonstration's goes to `json_file`.
    """
    out = console(as_json=as_json or json_file == STANDARD)

    def at_end(client: Client, view: JobView) -> None:
        found = report.result(client, view)
        if as_json:
            print_json(found)
        require_success(view)
        if not as_json and json_file != STANDARD:
            print_result(found)
        if json_file == STANDARD:
            print_json(report.summary(found))
        elif json_file is not None:
            json_file.write_text(json.dumps(report.summary(found), indent=2) + "\n")
            say(console(), f"wrote {json_file}")

    with refusals():
        try:
            here = Run(read_settings(), out, linger_s=linger_s)
            here.run(spec, at_end=at_end)
        except Interrupted as error:
            fail(str(error), code=INTERRUPTED)
    return here.page


def configure_logging(file: Path | None, log_format: LogFormat = LogFormat.TEXT) -> None:
    """Log what the service does, to standard error or `file`; of its own requests, only what goes wrong."""
    try:
        handlers = [RotatingFileHandler(file, maxBytes=LOG_BYTES, backupCount=NUM_OLD_LOGS)] if file else None
    except OSError as error:
        fail(f"cannot log into {file}: {error.strerror}; check WIRETUNE_LOG_FILE")
    log_lines.configure(log_format, "%(asctime)s %(levelname)s %(name)s: %(message)s", handlers=handlers)
    for name in ("wiretune", "service"):
        logging.getLogger(name).setLevel(logging.INFO)


if __name__ == "__main__":
    app()
