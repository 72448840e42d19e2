"""The base of every command: options, console, JSON output, plain errors, and a client of the service."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python
from rich.console import Console

from api.calls import UnreadableAnswer
from api.cli import completion
from api.cli.sheet import GAP, folded, visible
from api.client import Client
from api.connection import KEY_FILE, key_reader
from api.failures import ApiError, DamagedDownload, UnknownJob, Unreachable, problem_type
from api.local_service import LocalServerError, running_server
from api.retries import PATIENCE_S
from service.errors import NotFound, WiretuneError
from service.job.problems import Problem
from service.settings import Settings, refusals_of

#: Exit statuses. After UNANSWERED nothing is known about the job, so a script must not take it for a failed one.
FAILED, REFUSED, UNANSWERED, TIMED_OUT, INTERRUPTED = 1, 2, 3, 124, 130
STANDARD = Path("-")  # standard input or output
#: May lead to a file. Replacing that file would leave the shell writing to the old one.
_STANDARD_OUTPUT = Path("/dev/stdout")
_PIPE_WIDTH = 160
_HOW_TO_REACH_ONE = "start one with `wiretune serve`, or name another with --url and --key"

JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="the job; `-` reads standard input")]
_HOW_JOBS_GO = "its id, the beginning or end of it, its name, or `latest`: your newest job"
JobId = Annotated[str, typer.Argument(metavar="JOB", help=f"a job: {_HOW_JOBS_GO}", autocompletion=completion.jobs)]
Jobs = Annotated[
    list[str],
    typer.Argument(metavar="JOB ...", help=f"one job or more: {_HOW_JOBS_GO}", autocompletion=completion.jobs),
]
JobIds = Annotated[
    list[str],
    typer.Argument(metavar="JOB JOB ...", help=f"two jobs or more: {_HOW_JOBS_GO}", autocompletion=completion.jobs),
]
Url = Annotated[str | None, typer.Option(envvar="WIRETUNE_URL", help="default: the service running here")]


def _require_key(context: typer.Context, given: str | None) -> str | None:
    """Return the given key, else `@` and the file that the variable names. Exits with 2 if a file cannot be read."""
    if given is None and (file := os.environ.get(KEY_FILE)):
        given = f"@{file}"
    try:
        key_reader(given or "")()
    except (OSError, UnicodeDecodeError) as error:
        if context.resilient_parsing:  # silent: a shell completes while the user types
            return None
        fail(f"cannot read the key in {str(given)[1:]}: {getattr(error, 'strerror', None) or error}")
    return given


Key = Annotated[
    str | None,
    typer.Option(
        envvar="WIRETUNE_API_KEY",
        callback=_require_key,
        metavar="KEY|@FILE",
        help=f"an API key, or `@` and a file that contains it; default: the file that {KEY_FILE} names",
    ),
]
IdempotencyKey = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="a word for this submission; repeats with it within a day queue nothing new"),
]
Patience = Annotated[
    float,
    typer.Option("--patience", metavar="SECONDS", min=0, help="keep trying this long while the service is away"),
]
#: The running command was given --json, so it reports refusals and errors as JSON, too.
_is_for_a_script: ContextVar[bool] = ContextVar("_is_for_a_script", default=False)


def note_json(is_asked: bool) -> bool:
    """Note whether the command was given --json, and return that."""
    _is_for_a_script.set(is_asked)
    return is_asked


AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        callback=note_json,
        is_eager=True,  # before options that may be refused
        help="print JSON for a script; progress goes to standard error",
    ),
]


def fail(message: str, *, code: int = REFUSED, slug: str = "", errors: Sequence[Problem] = ()) -> NoReturn:
    """Print `message` and the `errors` of a job to standard error, with --json as one problem document, and exit.

    `slug` is the kind of problem, as in `ApiError`.
    """
    if _is_for_a_script.get():
        told = [each.model_dump(mode="json") for each in errors]
        typer.echo(json.dumps({"type": problem_type(slug), "detail": message, "errors": told}, indent=2), err=True)
    else:
        warn("\n".join([f"{message}:", *(f"  {each}" for each in errors)]) if errors else message)
    raise typer.Exit(code)


def require_agreement(question: str, *, is_agreed: bool, may_ask: bool, shown_by: str) -> None:
    """Exit unless the user agrees, by `--yes` or when asked; `shown_by` is the command that lists what would go."""
    may_ask = may_ask and typer.get_text_stream("stdin").isatty()
    if not is_agreed and not may_ask:
        fail(f"there is no terminal to ask on: give --yes; {shown_by} shows what would go")
    try:
        is_agreed = is_agreed or typer.confirm(visible(question))
    except typer.Abort:
        fail("\nnothing was removed", code=INTERRUPTED)
    if not is_agreed:
        fail("nothing was removed")


def warn(message: str) -> None:
    """Print `message` to standard error."""
    out = console(as_json=True)
    for line in message.splitlines() or [""]:
        say(out, line)


class _LastingConsole(Console):
    """A console that goes silent once nobody reads it; an ordinary one would end the process."""

    def on_broken_pipe(self) -> None:
        """Discard all further output."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)


def console(*, as_json: bool = False, is_lasting: bool = False) -> Console:
    """Return the console for people: on standard output, or on standard error if JSON goes to the former.

    A pipe is as wide as COLUMNS says, or else wide enough for every table. Once nobody reads it, the process ends, or
    goes on in silence if `is_lasting`.
    """
    kind = _LastingConsole if is_lasting else Console
    made = kind(stderr=as_json)
    return made if _has_width(made) else kind(stderr=as_json, width=_PIPE_WIDTH)


def say(out: Console, line: str) -> None:
    """Print `line` without colours, markup or control characters; a screen wraps it between words."""
    line = visible(line)
    indent = GAP + line[: len(line) - len(line.lstrip())]
    lines = folded(line, out.width, indent=indent, break_long_words=False) if _has_width(out) else [line]
    for each in lines:
        out.print(each, markup=False, highlight=False, soft_wrap=True)


def _has_width(out: Console) -> bool:
    return out.is_terminal or "COLUMNS" in os.environ


def print_json(content: BaseModel | dict[str, Any], *, indent: int | None = 2) -> None:
    """Print one JSON document to standard output."""
    typer.echo(json.dumps(to_jsonable_python(content), indent=indent))


def print_advice(advice: Iterable[str]) -> None:
    """Print advice about a job to standard error, so that a script's output stays clean."""
    for sentence in advice:
        warn(f"advice: {sentence}")


def require_writable(path: Path | None) -> Path | None:
    """Exit with 2 if no file can be written at `path`: before the job runs, not after."""
    if path is None or path == STANDARD:
        return path
    if path == _STANDARD_OUTPUT:
        return STANDARD
    if path.is_dir():
        fail(f"cannot write {path}: it is a folder")
    is_made = not path.exists() or path.is_file()  # written next to it first; pipes and devices are written to directly
    if is_made and not path.parent.is_dir():
        fail(f"cannot write {path}: there is no folder {path.parent}")
    needed = (path.parent, path) if is_made else (path,)
    if not all(os.access(place, os.W_OK) for place in needed if place.exists()):
        fail(f"cannot write {path}: permission denied")
    return path


def require_writable_folder(folder: Path) -> None:
    """Exit with 2 if no files can be written into `folder`, which may not exist yet."""
    nearest = next(each for each in (folder, *folder.absolute().parents) if os.path.exists(each))
    if not nearest.is_dir():
        fail(f"cannot write into {folder}: {nearest} is no folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        fail(f"cannot write into {folder}: permission denied")


def read_settings(**given: str | int | None) -> Settings:
    """Return the settings from the environment and options. Prints every problem and exits with 2 if there are any."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        fail("\n".join(refusals_of(error)))


@contextmanager
def open_client(url: str | None, key: str | None, *, patience_s: float = PATIENCE_S) -> Iterator[Client]:
    """Give a client of the service at `url`, or of the local one; calls keep trying for `patience_s`."""
    with told_plainly():
        if url is None:
            server = running_server(read_settings())
            if server is None:
                fail(f"no service is running here; {_HOW_TO_REACH_ONE}", code=UNANSWERED)
            url, key = server.url, key or server.key
        with Client(url, key or "", retry_s=patience_s, away_s=patience_s) as client:
            yield client


def tell_refusal(error: ApiError, *, job_id: str | None = None) -> None:
    """Print why the service refused, with --json as a problem document; `job_id` names one of several jobs."""
    if not _is_for_a_script.get():
        warn(str(error) if job_id is None else f"{job_id}: {error}")
    elif job_id is None:
        typer.echo(json.dumps(error.document, indent=2), err=True)
    else:
        typer.echo(json.dumps({"job": job_id, **error.document}), err=True)


@contextmanager
def told_plainly() -> Iterator[None]:
    """Print errors as plain messages, not as tracebacks, and exit."""
    try:
        yield
    except ApiError as error:
        tell_refusal(error)
        raise typer.Exit(status_of(error)) from error
    except Unreachable as error:
        is_there = error.overload or error.is_broken
        fail(str(error) if is_there else f"{error}\n{_HOW_TO_REACH_ONE}", code=UNANSWERED)
    except (LocalServerError, UnreadableAnswer) as error:
        fail(str(error), code=UNANSWERED)
    except UnknownJob as error:
        fail(str(error), slug=NotFound.slug)
    except DamagedDownload as error:
        fail(str(error), code=FAILED)
    except WiretuneError as error:
        fail(str(error), code=FAILED, slug=error.slug)


def status_of(error: ApiError) -> int:
    """Return the exit status of a command that was refused, or whose request the service could not answer."""
    return REFUSED if error.status < 500 else UNANSWERED
