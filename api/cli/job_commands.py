"""`wiretune`'s commands about jobs, for a service on any machine."""

import codecs
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Unpack

import typer

from api.calls import JobFilters
from api.cli import explanation, figures, report
from api.cli.job_file import JobName, NewLabels, Sets, label_pairs, put_changes, read_job
from api.cli.logs import follow_log, last_lines
from api.cli.progress import follow, where_it_is
from api.cli.sheet import Sheet
from api.cli.terminal import (
    FAILED,
    AsJson,
    IdempotencyKey,
    JobFile,
    JobId,
    Key,
    Patience,
    Url,
    console,
    fail,
    open_client,
    print_advice,
    print_json,
    say,
    warn,
)
from api.client import Client
from api.display import how_far
from api.retries import AWAY_S, PATIENCE_S
from api.tables import jobs_csv
from api.waiting import stands_still
from service.code_package import CodeRefused
from service.job.advice import advice
from service.job.parts import LOSS
from service.job.spec import JobSpec
from service.job.states import JobState
from service.wire.base import MAX_PAGE
from service.wire.jobs import JobOrder, JobPage, JobSummary, JobView, Validated
from service.wire.trials import TrialView
from trainers.spec.workloads import OwnWorkload

app = typer.Typer()


@app.command()
def submit(
    job: JobFile,
    sets: Sets = None,
    name: JobName = None,
    labels: NewLabels = None,
    code: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="upload the folder's code, for the job's `workload.factory`"),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="files of the folder to leave out, such as `data` or `*.csv`; repeatable"),
    ] = None,
    is_dry: Annotated[
        bool, typer.Option("--dry-run", help="queue nothing; the service checks everything but room in the queue")
    ] = False,
    is_watched: Annotated[bool, typer.Option("--watch", help="then follow the job, as `watch` does")] = False,
    idempotency_key: IdempotencyKey = None,
    patience: Patience = AWAY_S,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Queue a job and return at once, or with --watch once it is over; prints its id."""
    if is_dry and is_watched:
        fail("--dry-run queues nothing, so there is nothing to watch: leave one of them out")
    spec = read_job(job, put_changes({}, sets=sets, name=name, labels=labels))
    if code is not None and not isinstance(spec.workload, OwnWorkload):
        fail(f"--code is for a job with a `workload.factory`; {job} has `{spec.workload.kind}`")
    with open_client(url, key, patience_s=patience if is_watched else PATIENCE_S) as client:
        if code is not None:
            spec = _with_code(spec, _uploaded(client, code, exclude or []))
        if is_dry:
            _print_validated(client.validate(spec), as_json=as_json)
            return
        made = client.submit(spec, idempotency_key=idempotency_key).view
        print_advice(made.advice)
        if not as_json:
            typer.echo(made.id)
        if is_watched:
            _watch(client, made.id, with_history=True, as_json=as_json)
        elif as_json:
            print_json(made)


def _uploaded(client: Client, folder: Path, exclude: list[str]) -> str:
    try:
        return client.upload_code(folder, exclude=exclude)
    except CodeRefused as error:
        fail(str(error))


def _with_code(spec: JobSpec, digest: str) -> JobSpec:
    workload = spec.workload.model_copy(update={"code": digest, "path": None})
    return spec.model_copy(update={"workload": workload})


@app.command()
def validate(
    job: JobFile, sets: Sets = None, name: JobName = None, labels: NewLabels = None, as_json: AsJson = False
) -> None:
    """Check a job's file, print it with every default filled in, and give advice. Needs no service."""
    spec = read_job(job, put_changes({}, sets=sets, name=name, labels=labels), as_json=as_json)
    _print_validated(Validated(spec=spec, num_trials=spec.num_trials, advice=advice(spec)), as_json=as_json)


def _print_validated(found: Validated, *, as_json: bool) -> None:
    """Print the job with every default; for people, advice goes to standard error."""
    print_json(found if as_json else found.spec)
    if not as_json:
        for note in found.notes:
            warn(note)
        print_advice(found.advice)


class SortKey(StrEnum):
    CREATED = "created"
    FINISHED = "finished"
    NAME = "name"
    STATE = "state"
    RESULT = "result"
    LOSS = "loss"  # what `result` was called


#: The orders of the service, and their reverse.
_ORDERS = {
    SortKey.CREATED: (JobOrder.CREATED_DOWN, JobOrder.CREATED),
    SortKey.FINISHED: (JobOrder.FINISHED_DOWN, JobOrder.FINISHED),
    SortKey.NAME: (JobOrder.NAME, JobOrder.NAME_DOWN),
    SortKey.STATE: (JobOrder.STATE, JobOrder.STATE_DOWN),
    SortKey.RESULT: (JobOrder.RESULT, JobOrder.RESULT_DOWN),
    SortKey.LOSS: (JobOrder.RESULT, JobOrder.RESULT_DOWN),
}


def _pages(client: Client, *, limit: int, cursor: str | None, **filters: Unpack[JobFilters]) -> JobPage:
    """Return the first `limit` jobs from `cursor` on, over as many pages as needed."""
    page = client.jobs(**filters, limit=min(limit, MAX_PAGE), cursor=cursor)
    jobs = page.jobs
    while page.next_cursor is not None and len(jobs) < limit:
        page = client.jobs(**filters, limit=min(limit - len(jobs), MAX_PAGE), cursor=page.next_cursor)
        jobs += page.jobs
    return JobPage(jobs=jobs, next_cursor=page.next_cursor)


def _moment(text: str) -> datetime:
    """Return a moment as ISO 8601 writes it; without an offset it is this machine's time."""
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        message = f"{text!r} is not a date or time like 2026-11-25, 2026-11-25T09:30 or 2026-11-25T09:30:00Z"
        raise typer.BadParameter(message) from error


@app.command("list")
def list_jobs(
    state: Annotated[
        list[JobState] | None,
        typer.Option(metavar="STATE", help=f"only those that are {', '.join(JobState)}; repeatable"),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="only those with this label; repeated: with all")
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(metavar="WORDS", help="only those with all these words in name, notes, labels or methods"),
    ] = None,
    owner: Annotated[str | None, typer.Option(help="only those that OWNER submitted")] = None,
    project: Annotated[str | None, typer.Option(help="only those of PROJECT")] = None,
    created_after: Annotated[
        datetime | None, typer.Option(metavar="WHEN", parser=_moment, help="only those submitted then or later")
    ] = None,
    created_before: Annotated[
        datetime | None, typer.Option(metavar="WHEN", parser=_moment, help="only those submitted before")
    ] = None,
    is_archived: Annotated[bool, typer.Option("--archived", help="the archived ones instead")] = False,
    sort: Annotated[
        SortKey, typer.Option(help="`created`, `finished`: latest first; `result` (or `loss`): best first")
    ] = SortKey.CREATED,
    is_reversed: Annotated[
        bool, typer.Option("--reverse", help="reverse the order; jobs without a result then come first")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, help="the most to list")] = 20,
    cursor: Annotated[str | None, typer.Option(help="`next_cursor` of the page before, in the same order")] = None,
    are_ids: Annotated[bool, typer.Option("--ids", "-q", help="print the ids alone, one a line")] = False,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="FIELD", help="show this field, too: `optimizer.learning_rate`; repeatable"),
    ] = None,
    is_csv: Annotated[bool, typer.Option("--csv", help="print CSV, with results and bills")] = False,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    pointers = {column: _pointer(column) for column in columns or ()}
    filters: JobFilters = {
        "state": state or None,
        "labels": label_pairs(label or []),
        "text": text,
        "owner": owner,
        "project": project,
        "created_after": created_after,
        "created_before": created_before,
        "archived": is_archived,
        "progress": not (are_ids or is_csv),
        "fields": tuple(pointers.values()),
        "bill": is_csv,
        "order_by": _ORDERS[sort][is_reversed],
    }
    with open_client(url, key) as client:
        page = _pages(client, limit=limit, cursor=cursor, **filters)
    if as_json:
        print_json(page)
        return
    if are_ids:
        for job in page.jobs:
            typer.echo(job.id)
    elif is_csv:
        for line in jobs_csv(page.jobs, pointers):
            typer.echo(line, nl=False)
    else:
        console().print(_sheet(page.jobs, pointers))
    if page.next_cursor:
        more = f"there are more: --cursor {page.next_cursor}, or a larger --limit (now {limit})"
        say(console(as_json=are_ids or is_csv), more)  # other commands read ids and CSV from standard output


def _pointer(column: str) -> str:
    """Return the JSON pointer of a field such as `optimizer.learning_rate`; a pointer stays as it is."""
    return column if column.startswith("/") else f"/{column.replace('.', '/')}"


def _sheet(jobs: Sequence[JobSummary], columns: Mapping[str, str]) -> Sheet:
    """Return the jobs as a table, with their owners and projects where these differ.

    `columns` are further ones, each with its pointer into the jobs' specs.
    """
    differing = [name for name in ("owner", "project") if len({getattr(job, name) for job in jobs}) > 1]
    left = ("job", "state", "progress", *differing, "name")
    sheet = Sheet("job", "state", "progress", *differing, "result", *columns, "age", "name", left=left)
    now = datetime.now(UTC)
    for job in jobs:
        age = figures.age((now - job.created_at).total_seconds())
        owners = (getattr(job, name) for name in differing)
        fields = (_shown((job.fields or {}).get(pointer)) for pointer in columns.values())
        sheet.add_row(job.id, job.state, how_far(job), *owners, _result(job), *fields, age, job.name)
    return sheet


def _shown(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value)


def _result(job: JobSummary) -> str:
    """Return the result, with its metric unless that is the loss; until there is one, the best loss, as such."""
    if job.result is None:
        best = job.best_validation_loss
        return figures.loss(best) if best is None else f"best loss {figures.loss(best)}"
    return figures.loss(job.result) if job.metric == LOSS else f"{job.metric} {figures.loss(job.result)}"


@app.command()
def show(job: JobId, url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """Show a job: its state and the reason, its schedules, its bill, its arms over the seeds."""
    with open_client(url, key) as client:
        view = client.job(client.find(job)).view
        found = None if view.unread else report.result(client, view, with_all_schedules=as_json)
        attempts = () if as_json else client.attempts(view.id)
    if as_json:
        print_json(found or {"job": view})
        return
    for line in where_it_is(view, attempts):
        say(console(), line)
    if found is not None and view.started_at is not None:
        print_result(found, with_trials=True)


@app.command()
def explain(
    job: JobId,
    trial: Annotated[str | None, typer.Option(help="a trial's id; default: all")] = None,
    arm: Annotated[str | None, typer.Option(help="default: all")] = None,
    stage: Annotated[int | None, typer.Option(min=0, help="default: all")] = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Explain a job's decisions: the reasons, the probes, the predictions, and what came true."""
    with open_client(url, key) as client:
        job = client.find(job)
        try:
            found = explanation.explanation(client, job, trial=trial, arm=arm, stage=stage)
        except LookupError as error:
            fail(str(error))
    if as_json:
        print_json(found)
        return
    for part in explanation.parts(found):
        if isinstance(part, str):
            say(console(), part)
        else:
            console().print(part)


@app.command()
def watch(
    job: JobId,
    is_all: Annotated[
        bool, typer.Option("--all", help="begin with every stage and probe so far, not with a line a trial")
    ] = False,
    patience: Patience = AWAY_S,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Follow a job until it is over. Interrupting this does not affect the job."""
    with open_client(url, key, patience_s=patience) as client:
        _watch(client, client.find(job), with_history=is_all, as_json=as_json)


def _watch(client: Client, job: str, *, with_history: bool, as_json: bool) -> None:
    """Print what happens in the job until it is over, and how it ended. Exits with 1 unless it succeeded."""
    view = _follow_as_json(client, job) if as_json else follow(client, job, console(), with_history=with_history)
    require_success(view)
    if not as_json:
        print_result(report.result(client, view))


def _follow_as_json(client: Client, job: str) -> JobView:
    """Print a line at every change of the job or one of its trials, and return the job's last view."""
    last: dict[str, Any] = {}
    before: JobView | None = None
    trials: tuple[TrialView, ...] = ()
    for view in client.watch(job):
        trials = trials if stands_still(before, view) else client.trials(job)
        before = view
        state = {"job": view.model_dump(mode="json", exclude={"spec"}), "trials": trials}
        if state != last:
            print_json(state, indent=None)
            last = state
    return view


@app.command()
def logs(
    job: JobId,
    attempt: Annotated[int | None, typer.Option(min=1, help="default: the last")] = None,
    num_lines: Annotated[
        int | None, typer.Option("--tail", "-n", metavar="N", min=1, help="only the last N lines of earlier output")
    ] = None,
    is_followed: Annotated[
        bool, typer.Option("--follow", "-f", help="keep printing new output until the job is over")
    ] = False,
    patience: Patience = AWAY_S,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Print the output of an attempt's driver and workers."""
    with open_client(url, key, patience_s=patience if is_followed else PATIENCE_S) as client:
        job = client.find(job)
        if is_followed:
            pieces = follow_log(client, job, attempt, num_lines=num_lines)
        elif num_lines is None:
            pieces = iter([client.logs(job, attempt=attempt)])
        else:
            pieces = iter([last_lines(client, job, attempt, num_lines)[0]])
        for text in _decoded(pieces):
            if as_json:
                print_json({"job": job, "text": text}, indent=None)
            else:
                typer.echo(text, nl=False)


def _decoded(pieces: Iterable[bytes]) -> Iterator[str]:
    """Yield the text of each piece of a log. A character that a piece cuts is in the text of the next one."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    yield from map(decoder.decode, pieces)
    if rest := decoder.decode(b"", final=True):
        yield rest


def require_success(view: JobView) -> None:
    """Exit with 1 and the reason unless the job succeeded."""
    if view.state is not JobState.SUCCEEDED:
        fail(f"{view.id} {view.state}: {view.reason or 'no reason was given'}", code=FAILED)


def print_result(found: report.Result, *, with_trials: bool = False) -> None:
    """Print the result at the end of a job, for people, with its state and trials first if `with_trials`."""
    for line in report.headlines(found):
        say(console(), line)
    console().print()
    if with_trials:
        console().print(report.trials_table(found))
    for table in report.tables(found):
        console().print(table)
    for line in report.crossing_lines(found):
        say(console(), line)
