"""`wiretune clean`: remove what finished jobs left on this machine."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, NamedTuple

import typer

from api.cli.figures import size
from api.cli.terminal import FAILED, AsJson, fail, print_json, read_settings, require_agreement, told_plainly
from api.client import Client
from api.failures import ApiError, Unreachable
from api.local_service import running_server
from service.control import cleaning
from service.control.access.rules import LOCAL
from service.control.database.engine import is_there
from service.control.listing import JobFilter
from service.control.store import Store
from service.errors import CodeInUse, NotFound, Unavailable
from service.job.states import TERMINAL
from service.settings import Settings
from service.wire.code import CodeView
from service.wire.jobs import JobView

MAX_DAYS = 36_500

app = typer.Typer()


@app.command()
def clean(
    older_than: Annotated[
        float,
        typer.Option(metavar="DAYS", min=0, max=MAX_DAYS, help="only from jobs over, and code unused, for this long"),
    ] = 0.0,
    with_weights: Annotated[bool, typer.Option("--weights", help="trained weights, too")] = False,
    is_dry: Annotated[bool, typer.Option("--dry-run", help="only list what would be removed")] = False,
    is_agreed: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove what finished jobs left: checkpoints, logs, files of killed processes; and code that no job needs.

    Shows how much, then asks.

    Weights stay unless --weights is given. Schedules, like everything else in the database, always stay.
    """
    settings = read_settings()
    before = datetime.now(UTC) - timedelta(days=older_than)
    failures: dict[str, str] = {}
    with told_plainly():
        found = _leftovers(settings, before, with_weights=with_weights)
        if not as_json:
            for each in found:
                typer.echo(f"{size(each.num_bytes):>9}  {each.num_files} files  {each.what}  ({each.place})")
            num_bytes, num_files = sum(each.num_bytes for each in found), sum(each.num_files for each in found)
            typer.echo(f"{size(num_bytes)} in {num_files} files" if found else "nothing is left over")
        if found and not is_dry:
            require_agreement("remove them?", is_agreed=is_agreed, may_ask=not as_json, shown_by="--dry-run")
            over = {each.place for each in _leftovers(settings, before, with_weights=with_weights)}
            found = [each for each in found if each.place in over]  # the others continue by now
            found, failures = _remove(settings, found)
    total = sum(each.num_bytes for each in found)
    if as_json:
        print_json({"removed": not is_dry, "bytes": total, "leftovers": [each.model_dump() for each in found]})
    elif found and not is_dry:
        typer.echo(f"removed {size(total)}")
    if failures:
        fail("\n".join(f"not removed: {place}: {reason}" for place, reason in failures.items()), code=FAILED)


def _remove(settings: Settings, found: list[cleaning.Leftover]) -> tuple[list[cleaning.Leftover], dict[str, str]]:
    """Remove what can be removed. Return it, and for what stays the reasons by place.

    Each job is checked right before: one that continues by now keeps its files, and is no failure.
    """
    removed: list[cleaning.Leftover] = []
    failures: dict[str, str] = {}
    with _records(settings) as records:
        for number, each in enumerate(found):
            try:
                if each.code is not None and records is not None:
                    records.delete_code(each.code, project=each.project)
                elif each.job_id is None or records is None or records.job(each.job_id).state in TERMINAL:
                    cleaning.remove(settings, each)
                else:
                    continue
            except Unreachable as error:  # skip the others: each would wait as long
                return removed, failures | {left.place: str(error) for left in found[number:]}
            except (ApiError, CodeInUse, NotFound, Unavailable) as error:
                failures[each.place] = str(error)
            else:
                removed.append(each)
    return removed, failures


def _leftovers(settings: Settings, before: datetime, *, with_weights: bool) -> list[cleaning.Leftover]:
    with _records(settings) as records:
        finished = [] if records is None else list(cleaning.finished_jobs(records.jobs, before=before))
        unfinished = cleaning.unfinished_jobs(records.jobs) if records is not None and with_weights else ()
        in_use = set() if records is None else cleaning.starting_points(map(records.job, unfinished))
        code = [] if records is None else cleaning.unused_code(records.list_code(), before=before)
    return cleaning.leftovers(settings, finished, with_weights=with_weights, in_use=in_use) + code


class _Records(NamedTuple):
    """The parts of the database that `clean` needs."""

    jobs: cleaning.JobPages
    job: Callable[[str], JobView]  # by its id
    list_code: Callable[[], Iterable[CodeView]]
    delete_code: Callable[..., None]  # a digest, and the `project` that has it


@contextmanager
def _records(settings: Settings) -> Iterator[_Records | None]:
    """Give the records of the service running here, or else of the database; None if there is no database."""
    server = running_server(settings)
    if server is not None:
        with Client(server.url, server.key) as client:
            yield _Records(
                partial(client.jobs, archived=None),
                lambda job_id: client.job(job_id).view,
                client.iter_code,
                client.delete_code,
            )
    elif not is_there(settings.resolved_database_url):  # opening it would create it
        yield None
    else:
        with closing(Store.open(settings)) as store:
            yield _Records(
                partial(store.jobs, JobFilter(archived=None)),
                store.job,
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
