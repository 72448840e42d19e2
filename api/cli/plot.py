"""`wiretune plot`: write the page of one job, or of several side by side, to files."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from api.cli import completion
from api.cli.figures import size
from api.cli.terminal import FAILED, AsJson, Key, Url, console, fail, open_client, print_json, say
from api.downloads import complete
from api.plots import NoBrowser, Plot, html, pictures, plot

app = typer.Typer()
MOST = 26


class Format(StrEnum):
    HTML = "html"
    PNG = "png"
    SVG = "svg"


@app.command("plot")
def plot_jobs(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB ...", help="as in `show`", autocompletion=completion.jobs)],
    folder: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="created if missing", file_okay=False)],
    kind: Annotated[
        Format, typer.Option("--format", help="png and svg: a file for each chart, by Chromium")
    ] = Format.HTML,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Write the page of one job, or of several side by side, to files that need no service."""
    with open_client(url, key) as client:
        ids = list(dict.fromkeys(map(client.find, jobs)))
        if len(ids) > MOST:
            fail(f"plot takes at most {MOST} different jobs, got {len(ids)}")
        found = plot(client, ids)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = [_write(folder / name, content) for name, content in _files(found, kind)]
    except NoBrowser as error:
        fail(str(error), code=FAILED)
    except OSError as error:
        fail(f"cannot write to {folder}: {error.strerror or error}", code=FAILED)
    if as_json:
        print_json({"files": [str(each) for each in written]})
        return
    for each in written:
        say(console(), f"{each} ({size(each.stat().st_size)})")


def _files(found: Plot, kind: Format) -> Iterator[tuple[str, bytes]]:
    """Yield each file's name and content."""
    stem = found.of if found.page == "job" else "comparison"
    content = html(found)
    if kind is Format.HTML:
        yield f"{stem}.html", content.encode()
        return
    for name, picture in pictures(content, "png" if kind is Format.PNG else "svg").items():
        yield f"{stem}-{name}.{kind}", picture


def _write(path: Path, content: bytes) -> Path:
    with complete(path) as file:
        file.write(content)
    return path
