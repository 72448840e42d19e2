"""`wiretune`: the service and its jobs from a terminal."""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from pydantic import ValidationError
from rich import box
from rich.console import Console
from rich.table import Table

from api import figures, report
from api.client import ApiError, Client, Unreachable
from api.demo import DEFAULT_SECONDS, demo_job, introduction
from api.documents import checked, parse_yaml
from api.local import LocalServerError, running_server, stop_server
from api.report import TrialReport
from api.runs import Interrupted, Run, follow, say
from service.errors import InvalidJob, WiretuneError
from service.settings import Settings, refusals_of
from service.spec import JobSpec
from service.states import JobState
from service.views import JobView

DEMO_LINGER_S = 600.0
FAILED, REFUSED, INTERRUPTED = 1, 2, 130
_HOW_TO_REACH_ONE = "start one with `wiretune serve`, or name another with --url and --key"

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Tunes learning rate and gradient sparsity while a model trains over a slow network.",
)
JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="the job; `-` reads standard input")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="a job's id")]
Url = Annotated[str | None, typer.Option(envvar="WIRETUNE_URL", help="default: the service running here")]
Key = Annotated[str | None, typer.Option(envvar="WIRETUNE_API_KEY", help="an API key", show_envvar=True)]


def _require_writable(path: Path | None) -> Path | None:
    """Exit with 2 where no file can be written at `path`: before a job has run for it, not after."""
    if path is None or path == Path("-"):
        return path
    if path.is_dir():
        _fail(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir():
        _fail(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        _fail(f"cannot write {path}: permission denied")
    return path


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="address to bind (WIRETUNE_HOST)")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="port; 0: any free one (WIRETUNE_PORT)")] = None,
    linger: Annotated[
        float | None, typer.Option(help="end after so many seconds without a request or an active job")
    ] = None,
) -> None:
    """Run the service: API, page, and the jobs' owner."""
    from api.server import PortBusy
    from api.server import serve as serve_until_told  # the other commands need no web stack

    configure_logging()
    settings = _settings(host=host, port=port)
    with _refusals():
        try:
            serve_until_told(settings, linger_s=linger)
        except PortBusy as error:
            _fail(str(error))


@app.command()
def run(job: JobFile) -> None:
    """Run a job here, from start to bill; starts a service if none is up, and stops it again.

    A `workload.factory` is imported from the working folder.
    """
    _run_here(_read(job).resolved(str(Path.cwd())))


@app.command()
def demo(
    json_file: Annotated[
        Path | None, typer.Option("--json", help="write the result here", callback=_require_writable)
    ] = None,
    seconds: Annotated[float, typer.Option(help="training seconds per arm", min=1)] = DEFAULT_SECONDS,
) -> None:
    """Show a real job: tuned and dense arms on an emulated slow link."""
    spec = demo_job(seconds)
    for line in introduction(spec):
        say(_console(), line)
    page = _run_here(spec, linger_s=DEMO_LINGER_S, json_file=json_file)
    minutes = f"{DEMO_LINGER_S / 60:.0f} minutes"
    say(_console(), f"page: {page}")
    say(_console(), f"A service started here stays up for {minutes} after its last visitor; `wiretune stop` ends it.")


@app.command()
def submit(job: JobFile, url: Url = None, key: Key = None) -> None:
    """Queue a job and return at once; prints its id."""
    spec = _read(job)
    with _client(url, key) as client:
        typer.echo(client.submit(spec).id)


@app.command()
def validate(job: JobFile) -> None:
    """Check a job's file, and print it with every default filled in."""
    typer.echo(_read(job).model_dump_json(indent=2))


@app.command("list")
def list_jobs(
    state: Annotated[JobState | None, typer.Option(help="only those in this state")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500)] = 20,
    url: Url = None,
    key: Key = None,
) -> None:
    """List jobs, newest first."""
    table = Table("job", "name", "state", "arms", "best loss", "created", box=box.SIMPLE)
    with _client(url, key) as client:
        page = client.jobs(state=state, limit=limit)
    for job in page.jobs:
        best = figures.loss(job.best_validation_loss)
        created = f"{job.created_at.astimezone():%Y-%m-%d %H:%M}"
        table.add_row(job.id, job.name, job.state, ", ".join(job.arms), best, created)
    _console().print(table)
    if page.next_cursor:
        typer.echo(f"there are more; --limit shows up to 500 (now {limit})")


@app.command()
def show(job: JobId, url: Url = None, key: Key = None) -> None:
    """Show a job: where it is, its schedules and its bill."""
    with _client(url, key) as client:
        view = client.job(job)
        typer.echo(f"{view.id}  {view.name}  {view.state}{f': {view.reason}' if view.reason else ''}")
        if view.started_at is not None:
            _print_report(report.reports(client, view), view)


@app.command()
def watch(job: JobId, url: Url = None, key: Key = None) -> None:
    """Follow a job until it is over. Interrupting this leaves the job alone."""
    with _client(url, key) as client:
        view = follow(client, job, _console())
        _end(client, view)


@app.command()
def cancel(job: JobId, url: Url = None, key: Key = None) -> None:
    """Stop a job."""
    with _client(url, key) as client:
        typer.echo(f"{job} is {client.cancel(job).state}")


@app.command()
def export(
    job: JobId,
    arm: Annotated[str | None, typer.Option(help="default: the first")] = None,
    seed: Annotated[int | None, typer.Option(help="default: the first")] = None,
    out: Annotated[
        Path, typer.Option(help="where to write it; `-`: standard output", callback=_require_writable)
    ] = Path("schedule.json"),
    url: Url = None,
    key: Key = None,
) -> None:
    """Write the learned schedule, for use in any training script."""
    with _client(url, key) as client:
        schedule = client.schedule(job, arm=arm, seed=seed)
    text = schedule.model_dump_json(indent=2) + "\n"
    if out == Path("-"):
        typer.echo(text, nl=False)
        return
    out.write_text(text)
    unfinished = "" if schedule.complete else " (the job is not over: this is the schedule so far)"
    typer.echo(f"wrote {out}: {schedule.num_steps} steps of arm {schedule.arm}, seed {schedule.seed}{unfinished}")


@app.command()
def stop() -> None:
    """Stop the service of this machine, and with it its Ray and all workers."""
    with _refusals():
        typer.echo(stop_server(_settings()))


def _run_here(spec: JobSpec, *, linger_s: float | None = None, json_file: Path | None = None) -> str:
    """Run `spec` on this machine's server and print its report; return the address of its page."""

    def at_end(client: Client, view: JobView) -> None:
        found = _end(client, view)
        if json_file is not None:
            json_file.write_text(json.dumps(report.as_json(found), indent=2) + "\n")
            say(_console(), f"wrote {json_file}")

    with _refusals():
        try:
            here = Run(_settings(), _console(), linger_s=linger_s)
            here.run(spec, at_end=at_end)
        except Interrupted as error:
            _fail(str(error), code=INTERRUPTED)
    return here.page


def _end(client: Client, view: JobView) -> list[TrialReport]:
    """Print how the job ended; exits with 1 unless it succeeded."""
    if view.state is not JobState.SUCCEEDED:
        _fail(f"{view.id} {view.state}: {view.reason or 'no reason was given'}", code=FAILED)
    found = report.reports(client, view)
    _print_report(found, view)
    return found


def _print_report(found: list[TrialReport], view: JobView) -> None:
    console = _console()
    for each in found:
        if each.schedule:
            console.print(report.schedule_table(each))
    console.print(report.bill_table(found, view.spec))
    for line in report.crossing_lines(found):
        say(console, line)


def _console() -> Console:
    # A pipe has no width; tables are not folded there.
    console = Console()
    return console if console.is_terminal else Console(width=160)


def _read(path: Path) -> JobSpec:
    """Return the job in the file; prints every problem of it and exits with 2."""
    try:
        text = typer.get_binary_stream("stdin").read() if path == Path("-") else path.read_bytes()
    except OSError as error:
        _fail(f"cannot read {path}: {error.strerror}")
    try:
        return checked(JobSpec, parse_yaml(text))
    except InvalidJob as error:
        lines = [
            f"{path} is not a valid job:",
            *(f"  {p.pointer or '/'}: {p.message}" for p in error.problems),
        ]
        _fail("\n".join(lines))


def configure_logging() -> None:
    """Log what the service does; of the requests it makes itself, only what goes wrong."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for name in ("wiretune", "service"):
        logging.getLogger(name).setLevel(logging.INFO)
    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _settings(**given: str | int | None) -> Settings:
    """Return the settings of the environment and of options; prints every problem of them and exits with 2."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        _fail("\n".join(refusals_of(error)))


@contextmanager
def _client(url: str | None, key: str | None) -> Iterator[Client]:
    """Give a client of the service asked for, or of the one running here."""
    with _refusals():
        if url is None:
            server = running_server(_settings())
            if server is None:
                _fail(f"no service is running here; {_HOW_TO_REACH_ONE}", code=FAILED)
            url, key = server.url, key or server.key
        with Client(url, key or "") as client:
            yield client


@contextmanager
def _refusals() -> Iterator[None]:
    """Print what went wrong instead of a traceback."""
    try:
        yield
    except ApiError as error:
        _fail(str(error), code=REFUSED if error.status < 500 else FAILED)
    except Unreachable as error:
        _fail(f"{error}\n{_HOW_TO_REACH_ONE}", code=FAILED)
    except (LocalServerError, WiretuneError) as error:
        _fail(str(error), code=FAILED)


def _fail(message: str, *, code: int = REFUSED) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)


if __name__ == "__main__":
    app()
