"""`wiretune queue`, `priority`, `quota`: waiting jobs, their order, and the limits of owners and projects."""

from functools import partial
from typing import Annotated, Any

import typer

from api.cli.sheet import INDENT, Sheet
from api.cli.terminal import AsJson, Jobs, Key, Url, console, open_client, print_json, say
from api.cli.verb_commands import IfVersion, ask
from api.client import Client
from service.job.priority import Priority
from service.wire.base import MAX_PAGE
from service.wire.queue import QuotaKind, QuotaView

app = typer.Typer()
quota = typer.Typer(no_args_is_help=True, help="List, set and remove quotas of owners and projects; for operators.")
app.add_typer(quota, name="quota")

_NO_LIMIT = "none"


def _limit(text: str) -> float | str:
    """Return a limit: a number, or the word for no limit."""
    if text == _NO_LIMIT:
        return text
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is neither a number nor `{_NO_LIMIT}`") from error


def _limit_option(what: str) -> Any:
    return typer.Option(metavar="N", parser=_limit, help=f"{what}; `{_NO_LIMIT}`: any number; default: as before")


QuotaName = Annotated[str, typer.Argument(metavar="NAME", help="an owner or a project; `*`: whoever has no quota")]


@app.command()
def queue(
    limit: Annotated[int, typer.Option(min=1, max=MAX_PAGE, help="the most to show")] = 20,
    after: Annotated[int, typer.Option(min=0, help="begin after this place")] = 0,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Show the waiting jobs in their order, and why each waits."""
    with open_client(url, key) as client:
        found = client.queue(after=after, limit=limit)
    if as_json:
        print_json(found)
        return
    gpus = f", {found.free_gpus:g} of {found.gpus:g} GPUs" if found.gpus else ""
    say(console(), f"{found.of} wait; free are {found.free_cpus:g} of {found.cpus:g} CPUs{gpus}")
    for each in found.entries:
        say(console(), f"{each.job_id}  {each.priority}  {each.owner} in {each.project}")
        say(console(), f"{INDENT}{each.place.sentence}")
    if found.projects:
        sheet = Sheet("project", "weight", "running", "waiting", "workers", "share", "lately", left=("project",))
        for one in found.projects:
            counts = (str(one.running), str(one.waiting), str(one.workers))
            sheet.add_row(one.project, f"{one.weight:g}", *counts, f"{one.share:.0%}", f"{one.recent:.0%}")
        console().print(sheet)
    if found.next_after is not None:
        typer.echo(f"more: --after {found.next_after}", err=True)


@app.command()
def priority(
    jobs: Jobs,
    wanted: Annotated[Priority, typer.Argument(metavar="PRIORITY", help=", ".join(Priority))],
    if_version: IfVersion = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Give jobs that are not over another priority; high is for operators, urgent for admins."""
    ask(jobs, partial(Client.edit, priority=wanted), if_version=if_version, url=url, key=key, as_json=as_json)


@quota.command(name="list")
def list_quotas(url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """Show all quotas."""
    with open_client(url, key) as client:
        found = client.quotas()
    if as_json:
        print_json({"quotas": [each.model_dump(mode="json") for each in found]})
        return
    sheet = Sheet("of", "name", "workers", "GPUs", "running jobs", "waiting jobs", "weight", left=("of", "name"))
    for each in found:
        given = (each.workers, each.gpus, each.running, each.waiting)
        limits = ("any" if limit is None else f"{limit:g}" for limit in given)
        sheet.add_row(each.kind, each.name, *limits, f"{each.weight:g}")
    console().print(sheet)


@quota.command(name="set")
def set_quota(
    kind: Annotated[QuotaKind, typer.Argument(help="whether NAME is an owner or a project")],
    name: QuotaName,
    workers: Annotated[Any, _limit_option("workers at a time")] = None,
    gpus: Annotated[Any, _limit_option("GPUs at a time")] = None,
    running: Annotated[Any, _limit_option("jobs at a time")] = None,
    waiting: Annotated[Any, _limit_option("queued jobs")] = None,
    weight: Annotated[
        float | None, typer.Option(min=0.001, max=1000, help="a project's share beside other projects'; at first 1")
    ] = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Set limits of an owner or a project; those that you do not name stay. Running jobs go on."""
    limits = {"workers": workers, "gpus": gpus, "running": running, "waiting": waiting, "weight": weight}
    changes = {limit: None if value == _NO_LIMIT else value for limit, value in limits.items() if value is not None}
    with open_client(url, key) as client:
        found = client.edit_quota(kind, name, changes)
    if as_json:
        print_json(found)
    else:
        say(console(), _told(found))


@quota.command(name="delete")
def delete_quota(
    kind: Annotated[QuotaKind, typer.Argument(help="whether NAME is an owner or a project")],
    name: QuotaName,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Remove a quota. The one for everyone (`*`) then applies, if there is one."""
    with open_client(url, key) as client:
        client.delete_quota(kind, name)
    if as_json:
        print_json({"deleted": f"{kind} {name}"})
    else:
        typer.echo(f"removed the quota of {kind} {name}")


def _told(quota: QuotaView) -> str:
    limits = {
        "workers": quota.workers, "GPUs": quota.gpus, "running jobs": quota.running, "waiting jobs": quota.waiting,
    }  # fmt: skip
    given = [f"{limit:g} {what}" for what, limit in limits.items() if limit is not None]
    return f"{quota.kind} {quota.name}: {', '.join(given) or 'no limit'}; weight {quota.weight:g}"
