"""`wiretune predict` and `wiretune advise`: estimates of methods on a link that is not at hand."""

from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import typer
from pydantic import ValidationError

from api.cli import figures
from api.cli.job_file import read_job
from api.cli.rehearsal import DEFAULT_S, CannotTrain, Timeout, answers, lowest_rates
from api.cli.sheet import Sheet
from api.cli.terminal import AsJson, Key, Url, console, fail, open_client, print_advice, print_json, say
from api.display import duration
from service.job.advice import advice
from service.job.parts import TrialSpec
from service.job.spec import JobSpec
from service.prediction.choosing import advised, rates_that_pay
from service.prediction.predict import PredictionRequest, predict as predicted
from service.wire.predictions import MethodPrediction, Prediction, Span, Task
from trainers.methods.blocks.all.spec import AllBlocksConfig
from trainers.methods.exchange.dense.spec import NoneConfig
from trainers.methods.optimizer.spec import AdamWConfig
from trainers.methods.sync.every_step.spec import EveryStepConfig
from trainers.spec.link import EmulateLink
from trainers.traffic.shapes import parameter_shapes

app = typer.Typer()

SOURCES = "a job's file, a factory (package.module:name), or a job that has run"
Mbps = Annotated[
    float | None,
    typer.Option(
        metavar="R", help="rate of each machine's link, in Mbit/s, each way; default: the job's emulated link"
    ),
]
Latency = Annotated[
    float | None, typer.Option(metavar="MS", help="time that a message takes, one way; default: the job's, or 0")
]
NumWorkers = Annotated[
    int | None, typer.Option(min=2, max=1024, metavar="N", help="workers that train together; default: the job's")
]
Hosts = Annotated[
    int | None,
    typer.Option(
        min=2,
        max=1024,
        metavar="N",
        help="machines that share the workers; default: by the job's `per_node`, or one each",
    ),
]
Compute = Annotated[
    float | None,
    typer.Option("--compute-ms", metavar="MS", help="time that one worker computes in a step; default: measured here"),
]
Shapes = Annotated[str | None, typer.Option(help="shapes of the trained parameters, as 512x64,512; default: found out")]
Like = Annotated[
    str | None,
    typer.Option(metavar="TASK", help=f"recorded task whose losses stand for the job's: {', '.join(get_args(Task))}"),
]
Steps = Annotated[
    int | None,
    typer.Option(
        "--dense-steps", min=1, metavar="N", help="steps of dense training to the loss that counts; default: the budget"
    ),
]


class Source(NamedTuple):
    """A job, and the known facts about its steps and model."""

    job: JobSpec
    compute_ms: float | None = None
    shapes: str | None = None
    compute_spread: float = 1.0


@app.command()
def predict(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=SOURCES)],
    mbps: Mbps = None,
    latency: Latency = None,
    workers: NumWorkers = None,
    hosts: Hosts = None,
    compute_ms: Compute = None,
    shapes: Shapes = None,
    like: Like = None,
    dense_steps: Steps = None,
    timeout: Timeout = DEFAULT_S,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Predict the steps, bytes and time to a loss of every method, on a link and workers that you do not have.

    The compute time of a step is measured here, or taken from a job that has run.
    """
    given = _source(source, compute_ms=compute_ms, shapes=shapes, timeout_s=timeout, url=url, key=key, as_json=as_json)
    found = _predicted(
        given, mbps=mbps, latency_ms=latency, workers=workers, hosts=hosts, like=like, dense_steps=dense_steps
    )
    if as_json:
        print_json(found)
        return
    console().print(_table(found))
    for sentence in found.assumptions:
        say(console(), f"assumed: {sentence}")


@app.command()
def advise(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=SOURCES)],
    mbps: Mbps = None,
    latency: Latency = None,
    workers: NumWorkers = None,
    hosts: Hosts = None,
    compute_ms: Compute = None,
    shapes: Shapes = None,
    like: Like = None,
    timeout: Timeout = DEFAULT_S,
    url: Url = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Say in a few lines which method suits a job and its link, with the numbers behind it."""
    given = _source(source, compute_ms=compute_ms, shapes=shapes, timeout_s=timeout, url=url, key=key, as_json=as_json)
    print_advice(advice(given.job))
    found = _predicted(given, mbps=mbps, latency_ms=latency, workers=workers, hosts=hosts, like=like)
    if as_json:
        print_json(found)
        return
    for line in advised(found, figures.size):
        say(console(), line)


def _source(text: str, *, url: str | None, key: str | None, timeout_s: float, as_json: bool, **known: Any) -> Source:
    """Return the source: a file, a factory, or a job of the service."""
    if text == "-" or Path(text).suffix in (".yaml", ".yml", ".json") or Path(text).is_file():
        return _measured(
            Source(read_job(Path(text), as_json=as_json).resolved(str(Path.cwd())), **known), timeout_s=timeout_s
        )
    if _is_factory(text):
        job = JobSpec.model_validate(
            {"workload": {"factory": text}, "optimizer": {"kind": "sgd"}, "budget": {"steps": 1000}}
        )
        return _measured(Source(job.resolved(str(Path.cwd())), **known), timeout_s=timeout_s)
    with open_client(url, key) as client:
        job_id = client.find(text)
        job, trials = client.job(job_id).spec, client.trials(job_id)
    # A sample may have another model or batch size.
    bills = [trial.bill for trial in trials if trial.sample is None and trial.bill.steps_timed]
    if known["compute_ms"] is None and not bills:
        fail(f"no step of an arm of {job_id} was timed yet: give --compute-ms, or the job's file to measure it here")
    steps, seconds = sum(bill.steps_timed for bill in bills), sum(bill.seconds_compute for bill in bills)
    recorded_ms = 1e3 * seconds / steps if steps else None
    compute_ms = recorded_ms if known["compute_ms"] is None else known["compute_ms"]
    return _measured(Source(job, compute_ms, known["shapes"]), timeout_s=timeout_s)


def _is_factory(text: str) -> bool:
    """Return whether `text` is a module and a name in it; a job's name may look alike, e.g. `12:30`."""
    module, found, name = text.partition(":")
    return bool(found) and all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def _measured(source: Source, *, timeout_s: float) -> Source:
    """Return the source with its compute time measured here, and the shapes of a user's own model."""
    is_own = parameter_shapes(source.job.workload) is None and source.shapes is None
    if source.compute_ms is not None and not is_own:
        return source
    trial = next(source.job.trials())
    order = {
        "arms": {trial.arm: _alone(trial)},
        "lowest_rates": lowest_rates([trial]),
        "num_workers": source.job.workers.count,
    }
    try:
        found = answers(order, timeout_s=timeout_s)[trial.arm]
    except CannotTrain as error:
        fail(
            f"what a step computes cannot be measured here: {error}\ngive --compute-ms, and --shapes of your own model"
        )
    shapes = ",".join("x".join(map(str, shape or [1])) for shape in found["shapes"])
    if is_own:
        source = source._replace(shapes=shapes)
    if source.compute_ms is None:
        spread = min(100.0, found["spread_step"])
        source = source._replace(compute_ms=1e3 * found["seconds_step"], compute_spread=spread)
    return source


def _alone(trial: TrialSpec) -> dict[str, Any]:
    """Return the predicted run without an exchange."""
    alone: dict[str, Any] = {"exchange": NoneConfig(), "sync": EveryStepConfig(), "blocks": AllBlocksConfig()}
    if trial.replica.optimizer.kind == "from_exchange":
        alone["optimizer"] = AdamWConfig()
    return trial.replica.model_copy(update=alone).model_dump(mode="json")


def _predicted(source: Source, **asked: Any) -> Prediction:
    link = source.job.link if isinstance(source.job.link, EmulateLink) else None
    if asked["mbps"] is None and link is None:
        fail("the job's link is measured, so nobody knows it yet: give --mbps, and --latency in milliseconds")
    if link is not None:
        asked["mbps"] = link.mbps if asked["mbps"] is None else asked["mbps"]
        asked["latency_ms"] = link.latency_ms if asked["latency_ms"] is None else asked["latency_ms"]
    given = {name: value for name, value in asked.items() if value is not None}
    given.setdefault("workers", max(2, source.job.workers.count))
    try:
        return predicted(
            PredictionRequest(
                job=source.job,
                compute_ms=source.compute_ms,
                compute_spread=source.compute_spread,
                shapes=source.shapes,
                **given,
            )
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        fail(f"{'/'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}".removeprefix(": "))


def _table(found: Prediction) -> Sheet:
    hosts = "" if found.hosts == found.workers else f" on {found.hosts} hosts"
    title = (
        f"{found.workers} workers{hosts} over {found.mbps:g} Mbit/s and {found.latency_ms:g} ms, "
        f"{found.num_parameters:,} parameters"
    )
    to_loss = "to the loss" if found.dense_steps is None else f"to dense's loss at {found.dense_steps}"
    headings = (
        "a step",
        "error bar",
        "of it wire",
        "sent",
        "budget",
        "sends",
        "steps",
        to_loss,
        "pays at Mbit/s",
        "may take",
    )
    sheet = Sheet("method", *headings, title=title, left=("method",))
    for each in found.methods:
        sheet.add_row(each.method, *_cells(each))
    return sheet


def _cells(each: MethodPrediction) -> tuple[str, ...]:
    span = each.step_s
    return (
        f"{1e3 * span.expected:.3g} ms",
        f"{1e3 * span.low:.3g} to {1e3 * span.high:.3g}",
        figures.share(each.wire_s / span.expected),
        figures.size(each.bytes_per_step),
        "-" if each.budget_s is None else duration(each.budget_s),
        "-" if each.budget_bytes is None else figures.size(each.budget_bytes),
        "unknown" if each.steps_ratio is None else f"x {each.steps_ratio.expected:.2g}",
        "unknown" if each.loss_s is None else _span(each.loss_s, is_open=each.num_missed > 0),
        rates_that_pay(each),
        f"x {each.spare_ratio:.3g}",
    )


def _span(span: Span, *, is_open: bool) -> str:
    """Return expected seconds and their span, which is open-ended if a recorded seed missed the loss."""
    end = "or more" if is_open else f"to {span.high:.3g}"
    return f"{duration(span.expected)} ({span.low:.3g} {end})"
