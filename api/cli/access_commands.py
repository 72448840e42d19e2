"""`wiretune keys`, `me`, `audit`, `page`: API keys, sign-in, and the log of changes."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import typer

from api.cli import completion, figures
from api.cli.sheet import Sheet
from api.cli.terminal import FAILED, AsJson, Key, Url, console, fail, open_client, print_json, read_settings, say
from service.control.access.keys import write_private
from service.wire.access import DEFAULT_PROJECT, MAX_GRACE_S, IssuedKey, KeyView, Role
from service.wire.base import MAX_PAGE

app = typer.Typer()
keys = typer.Typer(no_args_is_help=True, help="Create, list, rotate and revoke API keys.")
app.add_typer(keys, name="keys")

KeyId = Annotated[str, typer.Argument(metavar="KEY_ID", help="a key's id, as `keys list` shows it")]
_MAX_DAYS = 36_500
_DAY = "%Y-%m-%d"


@keys.command()
def create(
    name: Annotated[str, typer.Argument(help="what the key is for")],
    role: Annotated[Role, typer.Option(help="each role includes the permissions of those before it")] = Role.SUBMITTER,
    owner: Annotated[str | None, typer.Option(help="who owns the jobs that it submits; default: NAME")] = None,
    project: Annotated[str, typer.Option(help="the project whose jobs it sees")] = DEFAULT_PROJECT,
    days: Annotated[
        float | None,
        typer.Option(min=0.001, max=_MAX_DAYS, metavar="N", help="days until the key expires; default: never"),
    ] = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and print its secret, which is shown only once."""
    expires_at = None if days is None else datetime.now(UTC) + timedelta(days=days)
    with open_client(url, key) as client:
        issued = client.create_key(name, owner=owner, role=role, project=project, expires_at=expires_at)
    _print_issued(issued, as_json=as_json)


@keys.command(name="list")
def list_keys(url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """Show your keys, or all keys if you are an admin."""
    with open_client(url, key) as client:
        found = client.keys()
    if as_json:
        print_json({"keys": [each.model_dump(mode="json") for each in found]})
        return
    columns = ("key", "name", "owner", "role", "project", "last used", "state")
    sheet = Sheet(*columns, left=columns)
    for each in found:
        used = figures.moment(each.last_used_at) if each.last_used_at else "never"
        sheet.add_row(each.id, each.name, each.owner, each.role, each.project, used, _state(each))
    console().print(sheet)


@keys.command()
def rotate(
    key_id: KeyId,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, max=MAX_GRACE_S, help="accept the old secret this much longer")
    ] = 0.0,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Give a key a new secret and print it. The old one stops working at once, or after --grace."""
    with open_client(url, key) as client:
        was_local = url is None and key is None and client.me().key == key_id
        issued = client.rotate_key(key_id, grace_s=grace)
    _print_issued(issued, as_json=as_json)  # first, since nothing shows it again if a later step fails
    if was_local:  # this machine's commands and the service's next start read it
        path = read_settings().state_dir / "api_key"
        try:
            write_private(path, f"{issued.secret}\n")
        except OSError as error:
            fail(
                f"the secret above is valid, but {path} keeps the old one: {error.strerror}; write it there",
                code=FAILED,
            )


@keys.command()
def revoke(key_id: KeyId, url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """Revoke a key, and its sessions on the page, for good."""
    with open_client(url, key) as client:
        view = client.revoke_key(key_id)
    if as_json:
        print_json(view)
    else:
        typer.echo(f"{view.id} ({view.name}) is {_state(view)}")


@app.command()
def me(url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """Show the name, role and project of your key."""
    with open_client(url, key) as client:
        found = client.me()
    if as_json:
        print_json(found)
    else:
        typer.echo(f"{found.name}, {found.role} in project {found.project}, with {found.key or 'an OIDC token'}")


@app.command()
def audit(
    name: Annotated[str | None, typer.Option(help="only actions of this user")] = None,
    action: Annotated[str | None, typer.Option(help="only this action, e.g. `createJob`")] = None,
    target: Annotated[str | None, typer.Option(metavar="ID", help="only about this job or key")] = None,
    outcome: Annotated[Literal["done", "refused"] | None, typer.Option(help="only what was done, or refused")] = None,
    limit: Annotated[int, typer.Option(min=1, max=MAX_PAGE, help="the most to show")] = 50,
    cursor: Annotated[int | None, typer.Option(min=1, help="`next_cursor` of the page before")] = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Show what users changed, and what their roles did not allow, newest first; for admins."""
    with open_client(url, key) as client:
        found = client.audit(name=name, action=action, target=target, outcome=outcome, limit=limit, cursor=cursor)
    if as_json:
        print_json(found)
        return
    for each in found.entries:
        what = f"{each.action} {each.target}".strip()
        line = f"{figures.moment(each.at, '%Y-%m-%d %H:%M:%S')}  {what}: {each.outcome}, by {each.name}"
        say(console(), line + (f" from {each.address}" if each.address else ""))
    if found.next_cursor is not None:
        typer.echo(f"older ones: --cursor {found.next_cursor}", err=True)


@app.command()
def page(
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="as in `show`; default: the list", autocompletion=completion.jobs),
    ] = None,
    url: Url = None,
    key: Key = None,
) -> None:
    """Print a link that signs one browser in to the page. It works once, within five minutes."""
    with open_client(url, key) as client:
        typer.echo(client.sign_in_link(None if job is None else client.find(job)))


def _print_issued(issued: IssuedKey, *, as_json: bool) -> None:
    if as_json:
        print_json(issued)
        return
    view = issued.key
    if issued.old_until is not None:
        typer.echo(f"the old secret is accepted until {figures.moment(issued.old_until)}", err=True)
    typer.echo(f"{view.id}: {view.role} of project {view.project}, owner {view.owner}; not shown again:", err=True)
    typer.echo(issued.secret)


def _state(key: KeyView) -> str:
    if key.revoked_at is not None:
        return f"revoked {figures.moment(key.revoked_at, _DAY)}"
    if key.expires_at is None:
        return "valid"
    return f"{'expired' if key.expires_at <= datetime.now(UTC) else 'until'} {figures.moment(key.expires_at, _DAY)}"
