"""`wiretune backup`, `restore`, `migrate` and `compact`: copy a service's state, put it back, update and shrink it."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from api.cli import figures
from api.cli.terminal import AsJson, print_json, read_settings, told_plainly
from service.control import backup as backups
from service.control.database.compaction import compact as compacted
from service.control.database.schema import revisions
from service.control.store import Store

app = typer.Typer()


@app.command()
def backup(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="a new one; it will hold secrets")],
    as_json: AsJson = False,
) -> None:
    """Copy database, secrets and local results into FOLDER, also while the service runs."""
    with told_plainly():
        made = backups.back_up(read_settings(), folder)
    if as_json:
        print_json(made)
        return
    typer.echo(f"backup of {made.database} at {made.revision} in {folder}")
    if not made.has_files:
        typer.echo(f"not in it: the files at {made.storage_url}; keep versions of them there")


@app.command()
def restore(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="the folder of a backup")],
    files_moved: Annotated[
        bool, typer.Option("--files-moved", help="the files that it does not contain are at WIRETUNE_STORAGE_URL")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Put a backup into an empty state dir and database; its jobs go on when `wiretune serve` starts there."""
    with told_plainly():
        made = backups.restore(read_settings(), folder, are_files_moved=files_moved)
    if as_json:
        print_json(made)
    else:
        typer.echo(f"restored the backup of {figures.moment(made.made_at)}; `wiretune serve` goes on with its jobs")


@app.command()
def migrate(as_json: AsJson = False) -> None:
    """Create or update the database schema for this release, and exit: a step before replicas start."""
    settings = read_settings()
    with told_plainly(), closing(Store.open(settings)):
        revision, _ = revisions(settings.resolved_database_url)
    if as_json:
        print_json({"revision": revision})
    else:
        typer.echo(f"the database is at revision {revision}")


@app.command()
def compact(as_json: AsJson = False) -> None:
    """Give the disk the space back that deleted jobs left in a SQLite database. Stop the service first."""
    with told_plainly():
        made = compacted(read_settings())
    if as_json:
        print_json({"bytes_before": made.before, "bytes_after": made.after})
    else:
        typer.echo(f"the database has {figures.size(made.after)}; it had {figures.size(made.before)}")
