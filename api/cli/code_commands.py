"""`wiretune code`: list, download and delete packages of uploaded code."""

import re
from pathlib import Path
from typing import Annotated

import typer

from api.cli import figures
from api.cli.exports import output, writing
from api.cli.sheet import Sheet
from api.cli.terminal import STANDARD, AsJson, Key, Url, console, fail, open_client, print_json, require_writable
from api.client import Client
from service.wire.code import DIGEST

app = typer.Typer()
code = typer.Typer(no_args_is_help=True, help="List, download and delete packages of uploaded code.")
app.add_typer(code, name="code")

_PREFIX = "sha256:"
_NUM_SHOWN = 12  # hexadecimal digits of a digest
Digest = Annotated[
    str, typer.Argument(metavar="DIGEST", help="a package: its digest, or the first digits of it, as `code list` shows")
]
Project = Annotated[
    str | None, typer.Option(help="the project that has it; default: your own, or else the oldest package")
]


@code.command(name="list")
def list_code(url: Url = None, key: Key = None, as_json: AsJson = False) -> None:
    """Show the packages that you may see, newest first."""
    with open_client(url, key) as client:
        found = list(client.iter_code())
    if as_json:
        print_json({"packages": [each.model_dump(mode="json") for each in found]})
        return
    left = ("code", "project", "owner", "last used", "in use")
    sheet = Sheet("code", "project", "owner", "last used", "in use", "size", "files", left=left)
    for each in found:
        size, used = figures.size(each.num_bytes), figures.moment(each.used_at)
        is_needed = "yes" if each.in_use else "no"
        sheet.add_row(_short(each.digest), each.project, each.owner, used, is_needed, size, str(each.num_files))
    console().print(sheet)


@code.command(name="get")
def get_code(
    digest: Digest,
    out: Annotated[
        Path | None,
        typer.Option(callback=require_writable, help="the zip; `-` is standard output; default: code-*.zip"),
    ] = None,
    project: Project = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Download a package's files as a zip."""
    with open_client(url, key) as client:
        whole = _whole(client, digest, project)
        out = out or Path(f"code-{_short(whole)}.zip")
        with writing(out), output(out) as file:
            client.save_code(whole, file, project=project)
    if out == STANDARD:
        return
    if as_json:
        print_json({"digest": whole, "path": str(out)})
    else:
        typer.echo(f"wrote {out}: {whole}")


@code.command(name="delete")
def delete_code(
    digest: Digest, project: Project = None, url: Url = None, key: Key = None, as_json: AsJson = False
) -> None:
    """Delete a package that no unfinished job needs: your own, or as an operator any."""
    with open_client(url, key) as client:
        whole = _whole(client, digest, project)
        client.delete_code(whole, project=project)
    if as_json:
        print_json({"deleted": whole})
    else:
        typer.echo(f"removed {whole}")


def _whole(client: Client, text: str, project: str | None) -> str:
    """Return the digest that begins with `text`. Exits unless it is of one package."""
    if re.fullmatch(DIGEST, text):
        return text
    begun = f"{_PREFIX}{text.removeprefix(_PREFIX).lower()}"
    visible = (each for each in client.iter_code() if project in (None, each.project))
    found = {each.digest for each in visible if each.digest.startswith(begun)}
    if len(found) != 1:
        fail(f"{'no package' if not found else 'more than one package'} begins with `{text}`; see `code list`")
    return found.pop()


def _short(digest: str) -> str:
    return digest.removeprefix(_PREFIX)[:_NUM_SHOWN]
