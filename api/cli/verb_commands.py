"""`wiretune`'s commands that change an existing job."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli import figures
from api.cli.job_file import JobName, NewLabels, Sets, read_changes, yaml_value
from api.cli.progress import state_lines
from api.cli.sheet import INDENT, visible
from api.cli.terminal import (
    REFUSED,
    AsJson,
    IdempotencyKey,
    JobId,
    Jobs,
    Key,
    Url,
    console,
    fail,
    open_client,
    print_json,
    require_agreement,
    say,
    status_of,
    tell_refusal,
    warn,
)
from api.client import Client
from api.failures import ApiError
from api.waiting import all_of, in_pages
from search.types import Band, Setting
from service.wire.jobs import JobView
from service.wire.steering import SteerableView, SteeringView, SteerView

app = typer.Typer()

Workers = Annotated[int | None, typer.Option(min=1, max=1024, help="workers per training run from now on")]
IfVersion = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="act only if the job is still at this version (see `show --json`)"),
]


def ask(
    jobs: list[str],
    verb: Callable[..., JobView],
    *,
    if_version: int | None,
    url: str | None,
    key: str | None,
    as_json: bool,
    told: Callable[[JobView], str] | None = None,
) -> None:
    """Send `verb` for each job, and print the job: as JSON, in the words of `told`, or else its state."""

    with open_client(url, key) as client:
        found = find_all(client, jobs, if_version=if_version)

        def act(job_id: str) -> None:
            view = verb(client, job_id, version=if_version)
            if as_json:
                print_json(view, indent=None if len(found) > 1 else 2)
            elif told is not None:
                typer.echo(visible(told(view)))
            else:
                for line in state_lines(view):
                    say(console(), line)

        for_each(found, act, as_json=as_json)


def find_all(client: Client, jobs: list[str], *, if_version: int | None) -> list[str]:
    """Return the ids of the jobs without repeats. Exits with 2 if one of several does not exist."""
    if if_version is not None and len(jobs) > 1:
        fail(f"--if-version is of one job, got {len(jobs)} jobs: leave it out, or name one")
    found = list(dict.fromkeys(map(client.find, jobs)))
    for asked in in_pages(found) if len(found) > 1 else ():  # whole ids were not looked up yet
        there = {each.id for each in client.send(all_of(asked)).jobs}
        if missing := set(asked) - there:
            fail(f"there is no job `{min(missing)}`, so nothing was asked of the others")
    return found


def for_each(ids: list[str], act: Callable[[str], None], *, as_json: bool, of_job: str | None = None) -> None:
    """Act on each job, or each trial `of_job`. If one of several is refused, say so, go on, and exit with 2 at the end.

    If the service fails, exit with 3 without asking for the rest.
    """
    refused = 0
    for each in ids:
        try:
            act(each)
        except ApiError as error:
            if len(ids) == 1:
                raise
            tell_refusal(error, job_id=of_job or each)  # the refusal itself names the trial
            if error.status >= 500:
                raise typer.Exit(status_of(error)) from error
            refused += 1
    if refused and not as_json:
        warn(f"the service refused {refused} of {len(ids)} {'trials' if of_job else 'jobs'}")
    if refused:
        raise typer.Exit(REFUSED)


@app.command()
def pause(jobs: Jobs, if_version: IfVersion = None, url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """Pause jobs: they write checkpoints, release their resources, and keep their places in the queue."""
    ask(jobs, Client.pause, if_version=if_version, url=url, key=key, as_json=as_json)


@app.command()
def resume(
    jobs: Jobs,
    workers: Workers = None,
    if_version: IfVersion = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Resume paused jobs."""
    ask(jobs, partial(Client.resume, workers=workers), if_version=if_version, url=url, key=key, as_json=as_json)


@app.command()
def cancel(jobs: Jobs, if_version: IfVersion = None, url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """End jobs without a result."""
    ask(jobs, Client.cancel, if_version=if_version, url=url, key=key, as_json=as_json)


@app.command()
def retry(
    jobs: Jobs,
    workers: Workers = None,
    if_version: IfVersion = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Continue failed or cancelled jobs from their last checkpoints."""
    ask(jobs, partial(Client.retry, workers=workers), if_version=if_version, url=url, key=key, as_json=as_json)


@app.command()
def extend(
    job: JobId,
    seconds: Annotated[float | None, typer.Option(help="the new budget: seconds of training in all")] = None,
    steps: Annotated[int | None, typer.Option(help="the new budget: steps in all")] = None,
    num_bytes: Annotated[
        int | None, typer.Option("--bytes", help="the new budget: bytes that one worker sends in all")
    ] = None,
    seeds: Annotated[str | None, typer.Option(metavar="SEED,...", help="further seeds of each arm, e.g. 2,3")] = None,
    samples: Annotated[int | None, typer.Option(help="samples of the sweep in all")] = None,
    workers: Workers = None,
    if_version: IfVersion = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Give a job that succeeded a larger budget, further seeds or more samples, and print where trials continue."""
    further = None if seeds is None else [_seed(each) for each in seeds.split(",")]
    caps: dict[str, Any] = {"seconds": seconds, "steps": steps, "bytes": num_bytes}
    extend = partial(Client.extend, **caps, seeds=further, samples=samples, workers=workers)
    ask([job], extend, if_version=if_version, url=url, key=key, as_json=as_json)


@app.command()
def steer(
    job: JobId,
    pins: Annotated[
        list[str] | None, typer.Option("--pin", metavar="NAME=VALUE", help="e.g. learning_rate=0.01; repeatable")
    ] = None,
    vetoes: Annotated[
        list[str] | None,
        typer.Option("--veto", metavar="NAME>VALUE", help="or NAME<VALUE, or NAME=VALUE for no number; repeatable"),
    ] = None,
    search_now: Annotated[bool, typer.Option("--search-now", help="have the next stage search")] = False,
    is_cleared: Annotated[bool, typer.Option("--clear", help="first withdraw all steers in force")] = False,
    withdrawn: Annotated[
        list[int] | None,
        typer.Option("--withdraw", metavar="ID", help="first withdraw the steer with this id; repeatable"),
    ] = None,
    trials: Annotated[
        list[str] | None, typer.Option("--trial", help="steer this trial alone; repeatable. Default: all that search")
    ] = None,
    if_version: IfVersion = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Pin and veto values of a job's controllers, from the next stage on; without options, show the steers in force."""
    said: dict[str, Any] = {"pin": dict(map(_pin, pins or [])), "veto": _vetoes(vetoes or []), "search_now": search_now}
    said |= {"clear": is_cleared or withdrawn or False, "trials": trials or None}
    if is_cleared and withdrawn:
        fail("--clear withdraws all that holds: leave --withdraw out")
    is_steered = any(said[name] for name in ("pin", "veto", "search_now", "clear"))
    if not is_steered and (trials or if_version is not None):
        fail("--trial and --if-version change nothing alone: add --pin, --veto, --search-now, --clear or --withdraw")
    with open_client(url, key) as client:
        found = client.find(job)
        if is_steered:
            client.steer(found, **said, version=if_version)
        steering = client.steering(found)
    if as_json:
        print_json(steering)
        return
    for line in steering.notes:
        warn(line)
    for line in _steering_lines(steering):
        say(console(), line)


def _seed(text: str) -> int:
    if not text.strip().isdecimal():
        fail(f"--seeds takes whole numbers with commas between them, e.g. 2,3, got {text!r}")
    return int(text)


def _steering_lines(steering: SteeringView) -> Iterator[str]:
    """Yield the steers in force, and what may be steered."""
    held = [f"{each.id}: {steer_text(each)}" for each in steering.steers if each.in_force]
    yield from held or ["nobody steers this job"]
    yield "what may be steered:" if steering.steerable else "nothing may be steered"
    yield from (f"{INDENT}{steerable_text(each)}" for each in steering.steerable)


def _pin(text: str) -> tuple[str, Any]:
    name, found, value = text.partition("=")
    if not (name and found and value):
        fail(f"--pin takes NAME=VALUE, e.g. learning_rate=0.01, got {text!r}")
    return name, yaml_value(value, f"--pin {text}")


def _vetoes(texts: list[str]) -> dict[str, Any]:
    """Read `learning_rate>0.1`, `density<0.01`, `option=powersgd 2`."""
    found: dict[str, Any] = {}
    for text in texts:
        name, sign, written = next((text.partition(sign) for sign in "<>=" if sign in text), (text, "", ""))
        value = yaml_value(written, f"--veto {text}") if written else None
        if not name or value is None or (sign != "=" and not isinstance(value, int | float)):
            fail(f"--veto takes NAME>NUMBER, NAME<NUMBER or NAME=VALUE, got {text!r}")
        if isinstance(found.get(name, {}), list) != (sign == "=") and name in found:
            fail(f"--veto {text}: a veto of `{name}` is of numbers, or of single values, not both")
        if sign == "=":
            found[name] = [*found.get(name, []), value]
        else:
            found[name] = {**found.get(name, {}), "above" if sign == ">" else "below": value}
    return found


def steer_text(each: SteerView) -> str:
    """Return a steer in words: its content, its author, and the stage from which it holds."""
    pins = [f"{name} = {value}" for name, value in each.pin.items()]
    vetoes = [
        f"not {name} {sign} {limit}"
        for name, veto in each.veto.items()
        for sign, limit in (
            [(">", veto.above), ("<", veto.below)] if isinstance(veto, Band) else [("=", value) for value in veto]
        )
        if limit is not None
    ]
    wishes = [*pins, *vetoes, *(["a search now"] if each.search_now else [])]
    stages = [f"{trial.partition('.')[2]} since stage {stage}" for trial, stage in each.first_stages.items()]
    waiting = len(each.trials) - len(each.first_stages)
    since = [*stages, *([f"{waiting} of {len(each.trials)} trials from their next stage on"] if waiting else [])]
    return f"{', '.join(wishes)}, by {each.by} ({'; '.join(since)})"


def steerable_text(each: SteerableView) -> str:
    """Return the allowed values of a field, its present value, and the number of its trials."""
    allowed = ", ".join(map(_shown, each.names)) or f"{figures.number(each.low)} to {figures.number(each.high)}"
    now = "" if each.current is None else f", now {_shown(each.current)}"
    return f"{each.name}: {allowed}{now}, in {len(each.trials)} trial{'s' if len(each.trials) > 1 else ''}"


def _shown(value: Setting) -> str:
    if isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else figures.number(value)


@app.command()
def label(
    job: JobId,
    changes: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE|NAME-", help="set a label; with `-` behind its name remove it")
    ],
    if_version: IfVersion = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Set and remove labels of a job, such as `team=vision draft-`; the others stay."""
    labels = dict(map(_label, changes))
    edit = partial(Client.edit, labels=labels)
    ask([job], edit, if_version=if_version, url=url, key=key, as_json=as_json, told=_labels)


def _labels(view: JobView) -> str:
    return f"labels of {view.id}: {' '.join(f'{name}={value}' for name, value in view.labels.items()) or 'none'}"


def _label(text: str) -> tuple[str, str | None]:
    name, found, value = text.partition("=")
    if found and name:
        return name, value
    if not found and text.removesuffix("-") not in ("", text):
        return text.removesuffix("-"), None
    fail(f"a label is NAME=VALUE, or NAME- to remove it, got {text!r}")


@app.command()
def note(
    job: JobId,
    text: Annotated[str, typer.Argument(help='the whole text; "" removes it, `-` reads standard input')],
    if_version: IfVersion = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Write notes on a job, replacing earlier ones."""
    notes = typer.get_text_stream("stdin").read() if text == "-" else text
    edit, told = partial(Client.edit, notes=notes), "noted on {}"
    ask([job], edit, if_version=if_version, url=url, key=key, as_json=as_json, told=lambda view: told.format(view.id))


@app.command()
def archive(
    jobs: Jobs, if_version: IfVersion = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Hide jobs that are over from lists; nothing is deleted."""

    def told(view: JobView) -> str:
        return f"archived; `unarchive {view.id}` undoes it"

    edit = partial(Client.edit, archived=True)
    ask(jobs, edit, if_version=if_version, url=url, key=key, as_json=as_json, told=told)


@app.command()
def unarchive(
    jobs: Jobs, if_version: IfVersion = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Show archived jobs in lists again."""

    def told(view: JobView) -> str:
        return f"{view.id} is in lists again"

    edit = partial(Client.edit, archived=False)
    ask(jobs, edit, if_version=if_version, url=url, key=key, as_json=as_json, told=told)


@app.command()
def delete(
    jobs: Jobs,
    is_agreed: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    if_version: IfVersion = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Delete jobs that are over, with their metrics, logs, checkpoints and weights. Asks first."""
    with open_client(url, key) as client:
        found = find_all(client, jobs, if_version=if_version)
        views = [client.job(job_id).view for job_id in found]
        named = [f"{view.id} ({view.state}, `{view.name}`)" for view in views]
        question = f"delete {', '.join(named)} and all {'its' if len(found) == 1 else 'their'} results?"
        require_agreement(question, is_agreed=is_agreed, may_ask=not as_json, shown_by="`wiretune show`")

        def act(job_id: str) -> None:
            client.delete(job_id, version=if_version)
            if as_json:
                print_json({"deleted": job_id}, indent=None if len(found) > 1 else 2)
            else:
                typer.echo(f"deleted {job_id}")

        for_each(found, act, as_json=as_json)


@app.command()
def clone(
    job: JobId,
    sets: Sets = None,
    name: JobName = None,
    labels: NewLabels = None,
    changes: Annotated[
        Path | None, typer.Option(help="YAML with the fields that change; `-` reads standard input")
    ] = None,
    trial: Annotated[
        str | None, typer.Option(help="copy what this arm or sample trains, such as `sample-3`, or `best`")
    ] = None,
    is_dry: Annotated[bool, typer.Option("--dry-run", help="only show what would differ")] = False,
    idempotency_key: IdempotencyKey = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Queue a new job that is JOB with changes; shows every field that differs, and prints its id."""
    patch = read_changes(changes, sets=sets, name=name, labels=labels)
    with open_client(url, key) as client:
        made = client.clone(client.find(job), patch, trial=trial, dry_run=is_dry, idempotency_key=idempotency_key)
    if as_json:
        print_json(made)
        return
    if not made.changes:  # to standard error: scripts read only the id
        warn(f"nothing differs from {made.source}")
    for change in made.changes:
        warn(f"  {change.pointer}: {_given(change.before)} -> {_given(change.after)}")
    if made.job is not None:
        typer.echo(made.job.id)


def _given(value: Any) -> Any:
    """Return a part of a job without the fields that it leaves out."""
    return {name: each for name, each in value.items() if each is not None} if isinstance(value, dict) else value
