"""`wiretune wait`: wait until jobs are over."""

from typing import Annotated

import typer

from api.cli.terminal import (
    FAILED,
    TIMED_OUT,
    AsJson,
    Jobs,
    Key,
    Patience,
    Url,
    console,
    fail,
    open_client,
    print_json,
    say,
)
from api.cli.verb_commands import find_all
from api.retries import AWAY_S
from service.job.states import JobState

app = typer.Typer()


@app.command()
def wait(
    jobs: Jobs,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0, help="exit with 124 if they are not over by then")
    ] = None,
    patience: Patience = AWAY_S,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Wait until jobs are over, and print how each of them ended. Exits with 1 unless all have succeeded.

    Interrupting this does not affect the jobs.
    """
    with open_client(url, key, patience_s=patience) as client:
        ids = find_all(client, jobs, if_version=None)
        try:
            over = client.wait_all(ids, timeout_s=timeout)
        except TimeoutError as error:
            fail(str(error), code=TIMED_OUT)
    for job in over:
        if as_json:
            print_json(job, indent=None if len(over) > 1 else 2)
        else:
            say(console(), f"{job.id} {job.state}" + (f": {job.reason}" if job.reason else ""))
    if not_succeeded := [job.id for job in over if job.state is not JobState.SUCCEEDED]:
        fail(f"not succeeded: {', '.join(not_succeeded)}", code=FAILED)
