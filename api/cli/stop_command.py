"""`wiretune stop`: end a job or one of its trials early, or the service of this machine."""

from typing import Annotated

import typer

from api.cli import completion
from api.cli.terminal import (
    AsJson,
    Key,
    Url,
    console,
    fail,
    open_client,
    print_json,
    read_settings,
    say,
    told_plainly,
    warn,
)
from api.cli.verb_commands import IfVersion, ask, for_each
from api.client import Client
from api.display import trial_name
from service.wire.jobs import JobView
from service.wire.trials import TrialView

app = typer.Typer()


@app.command()
def stop(
    context: typer.Context,
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="as in `show`; default: the service", autocompletion=completion.jobs),
    ] = None,
    arm: Annotated[str | None, typer.Option(help="stop this arm, or sample, of JOB alone; the others go on")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="with --arm: the seed; default: every one")] = None,
    if_version: IfVersion = None,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Finish JOB early and keep its result. Without one: stop the service of this machine, its Ray and all workers."""
    if seed is not None and arm is None:
        fail("--seed is of an arm: add --arm, or leave it out")
    if job is None:
        if arm is not None:
            fail("--arm is of a job: name the job, or leave it out to stop the service of this machine")
        if if_version is not None:
            fail("--if-version is of a job; the service has no version to compare with: leave it out, or name the job")
        _stop_service(context, url, as_json=as_json)
    elif arm is not None:
        _stop_trials(job, arm, seed, if_version=if_version, url=url, key=key, as_json=as_json)
    else:
        ask([job], Client.stop, if_version=if_version, url=url, key=key, as_json=as_json)


def _stop_service(context: typer.Context, url: str | None, *, as_json: bool) -> None:
    """Stop the service of this machine, and say so. Exits if an option names another one."""
    sources = {name: context.get_parameter_source(name) for name in ("url", "key")}
    if any(source is not None and source.name == "COMMANDLINE" for source in sources.values()):
        fail(
            "`--url` and `--key` are for a job; without one, `stop` ends the service of this machine: leave them out, "
            "or name the job"
        )
    if url is not None:
        warn(f"`stop` without a job ends the service of this machine, whatever WIRETUNE_URL says, not that at {url}")
    from api.cli.local import stop_server  # needs what the service runs on

    with told_plainly():
        message = stop_server(read_settings())
    if as_json:
        print_json({"stopped": message})
    else:
        typer.echo(message)


def _stop_trials(
    job: str, arm: str, seed: int | None, *, if_version: int | None, url: str | None, key: str | None, as_json: bool
) -> None:
    """Stop an arm's trials, or a sample, of a job whose other trials go on. Those that have ended stay as they are."""
    views: list[JobView] = []
    with open_client(url, key) as client:
        found = client.find(job)
        trials = {trial.trial_id: trial for trial in _going_on(client, found, arm, seed)}
        if if_version is not None and len(trials) > 1:
            fail(f"--if-version is of one trial, and {len(trials)} of arm `{arm}` go on: leave it out, or add --seed")

        def act(trial_id: str) -> None:
            views.append(client.stop_trial(found, trial_id, version=if_version))
            if not as_json:
                say(console(), f"{trial_name(trials[trial_id], views[-1].spec)} of {found} stops")

        try:
            for_each(list(trials), act, as_json=as_json, of_job=found)
        finally:  # some may have stopped, whatever was refused
            if as_json and views:
                print_json(views[-1])


def _going_on(client: Client, job_id: str, arm: str, seed: int | None) -> list[TrialView]:
    """Return the arm's trials that go on, else its first: the service says why it refuses that. Exits if none is."""
    named = [trial for trial in client.trials(job_id) if trial.arm == arm and seed in (None, trial.seed)]
    if not named:
        which = f"arm `{arm}`" if seed is None else f"arm `{arm}` and seed {seed}"
        fail(f"job {job_id} has no trial of {which}; `wiretune show` lists its arms, samples and seeds")
    return [trial for trial in named if trial.outcome is None and trial.stopped_by is None] or named[:1]
