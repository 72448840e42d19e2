"""The files of `wiretune export`: schedules, metrics, weights, reports. Each appears only when complete."""

import hashlib
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, NamedTuple

import typer

from api.cli.terminal import FAILED, STANDARD, fail, require_writable_folder
from api.client import Client
from api.downloads import complete, resumable
from api.exporters.trackers import Begin, TrackerError
from api.failures import ApiError
from api.tables import write_parquet
from service.control.results import ranking
from service.control.results.artifacts import weights_sha256, weights_url
from service.control.storage import WEIGHTS
from service.errors import WiretuneError
from service.job.parts import BEST_TRIAL
from service.wire.artifacts import Which
from service.wire.jobs import JobView
from service.wire.trials import TrialView


class What(StrEnum):
    SCHEDULE = "schedule"
    METRICS = "metrics"
    WEIGHTS = "weights"
    REPORT = "report"
    ALL = "all"


class Tracker(StrEnum):
    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"
    WANDB = "wandb"


#: Default file names; `all` goes to a folder named after the job.
DEFAULT_NAMES = {
    What.SCHEDULE: "schedule.json",
    What.METRICS: "metrics.csv",
    What.WEIGHTS: WEIGHTS,
    What.REPORT: "report.json",
}


class Selection(NamedTuple):
    """The trials to export: by default a sweep's best, else the first, or for metrics all."""

    job_id: str
    arm: str | None = None
    seed: int | None = None
    which: Which | None = None  # of a trial's weights


class Written(NamedTuple):
    """A written file, and a summary of its content."""

    path: Path
    content: str


def settled(client: Client, chosen: Selection, *, is_of_one: bool) -> Selection:
    """Return the selection with the arm and seed that it means: of one trial, or for metrics only those of `best`.

    The service chooses in the same way. Doing it here lets the output say which trial was written. If there is no such
    trial, the selection stays as it is, and the service says why.
    """
    if chosen.arm != BEST_TRIAL and (not is_of_one or None not in (chosen.arm, chosen.seed)):
        return chosen
    trials = client.trials(chosen.job_id)
    arm = ranking.default_arm(trials, chosen.arm, chosen.seed) if is_of_one else chosen.arm
    found = ranking.chosen(trials, arm, chosen.seed, lambda: client.report(chosen.job_id).best_trial)
    return chosen._replace(arm=found[0].arm, seed=found[0].seed) if found else chosen


def write(client: Client, chosen: Selection, what: What, out: Path) -> Written:
    """Write one kind of result to the file `out`; `-` is standard output."""
    if what is not What.REPORT:
        chosen = settled(client, chosen, is_of_one=what is not What.METRICS)
    with output(out, is_resumable=what is What.WEIGHTS) as file:
        content = _fetch(client, chosen, what, file, as_parquet=out.suffix == ".parquet")
    return Written(out, content)


def write_all(client: Client, chosen: Selection, folder: Path) -> Iterator[Written]:
    """Write the report, all points, and the existing schedules and weights of every chosen trial.

    Weights that an earlier export has left in `folder` are not downloaded again.
    """
    require_writable_folder(folder)
    chosen = settled(client, chosen, is_of_one=False)
    trials = [
        trial
        for trial in client.trials(chosen.job_id)
        if chosen.arm in (None, trial.arm) and chosen.seed in (None, trial.seed)
    ]
    if not trials:
        fail(f"no trial of job {chosen.job_id} is of {_whose(chosen)}; `wiretune show` lists its arms and seeds")
    folder.mkdir(parents=True, exist_ok=True)
    job = client.job(chosen.job_id).view
    for what in (What.METRICS, What.REPORT):
        yield write(client, chosen, what, folder / DEFAULT_NAMES[what])
    for trial in trials:
        own = chosen._replace(arm=trial.arm, seed=trial.seed)
        yield from _write_trial(client, own, job, trial, folder / f"{trial.arm}-seed-{trial.seed}")


def _write_trial(client: Client, own: Selection, job: JobView, trial: TrialView, folder: Path) -> Iterator[Written]:
    """Write the trial's schedule and weights, if there are any."""
    folder.mkdir(exist_ok=True)
    for what in (What.SCHEDULE, What.WEIGHTS):
        place = folder / DEFAULT_NAMES[what]
        if what is What.WEIGHTS and _has_weights(place, job, trial, own.which):
            yield Written(place, f"{_weights_of(own)}, as they were here")
            continue
        try:
            yield write(client, own, what, place)
        except ApiError as error:
            if error.status != 404:  # this trial does not have it yet
                raise
            typer.echo(f"left out the {what} of {trial.arm}, seed {trial.seed}: {error.detail}", err=True)


def _has_weights(place: Path, job: JobView, trial: TrialView, which: Which | None) -> bool:
    """Return whether the file at `place` has the trial's weights, by the SHA-256 that the service knows."""
    if not place.is_file():
        return False
    try:
        expected = weights_sha256(trial, weights_url(job, trial, which))
    except WiretuneError:  # the service will say why there are none
        return False
    with place.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == expected


def tracker(chosen: Tracker, out: Path) -> Begin:
    """Return a function that begins a run of the tracker in `out`. Exits with 2 if the tracker is not installed."""
    try:
        begin: Begin = import_module(f"api.exporters.{chosen}").into(out)
    except ModuleNotFoundError as error:
        fail(f"{chosen} is not installed ({error}): pip install 'wiretune[export]'")
    except TrackerError as error:
        fail(str(error), code=FAILED)
    return begin


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Exit with 1 and a sentence if writing to `place` fails."""
    try:
        yield
    except BrokenPipeError:  # the reader has seen enough
        raise
    except OSError as error:
        fail(f"cannot write to {place}: {error.strerror or error}", code=FAILED)


@contextmanager
def output(out: Path, *, is_resumable: bool = False) -> Iterator[BinaryIO]:
    """Give a file that becomes `out` once it is complete; `-` is standard output.

    A download whose file `is_resumable` continues where an earlier one broke off.
    """
    if out == STANDARD:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if out.exists() and not out.is_file():  # a pipe or a device: never replaced
        with out.open("wb") as file:
            yield file
        return
    with resumable(out) if is_resumable else complete(out) as file:
        yield file


def _fetch(client: Client, chosen: Selection, what: What, file: BinaryIO, *, as_parquet: bool) -> str:
    """Write one kind of result into `file`, and return a summary of it."""
    job_id, arm, seed, which = chosen
    if what is What.SCHEDULE:
        schedule = client.schedule(job_id, arm=arm, seed=seed)
        file.write(f"{schedule.model_dump_json(indent=2)}\n".encode())
        unfinished = "" if schedule.complete else f" ({_unfinished(client.job(job_id).view)})"
        return f"{schedule.num_steps} steps of arm {schedule.arm}, seed {schedule.seed}{unfinished}"
    if what is What.REPORT:
        file.write(f"{client.report(job_id).model_dump_json(indent=2)}\n".encode())
        return "every trial's result, and every arm's over its seeds"
    if what is What.WEIGHTS:
        client.save_weights(job_id, file, arm=arm, seed=seed, which=which)
        return _weights_of(chosen)
    of_whom = "" if arm is None and seed is None else f" of {_whose(chosen)}"
    if not as_parquet:
        client.save_metrics(job_id, file, arm=arm, seed=seed)
        return f"every point{of_whom}, as CSV"
    with tempfile.TemporaryFile() as text:
        client.save_metrics(job_id, text, arm=arm, seed=seed)
        text.seek(0)
        write_parquet(text, file)
    return f"every point{of_whom}, as Parquet"


def _unfinished(job: JobView) -> str:
    """Return the reason that a trial's schedule is incomplete."""
    if not job.is_over:
        return "the job is not over: this is the schedule so far"
    return (
        f"the job is {job.state}, and the trial did not finish: this is what it trained, and what was decided for its "
        "steps behind the last checkpoint, without ramps"
    )


def _weights_of(chosen: Selection) -> str:
    return f"{f'{chosen.which} ' if chosen.which else ''}weights of {_whose(chosen)}"


def _whose(chosen: Selection) -> str:
    named = {"arm": chosen.arm, "seed": chosen.seed}
    return ", ".join(f"{what} {which}" for what, which in named.items() if which is not None)
