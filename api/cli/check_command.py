"""`wiretune check`: try a job's workload on this machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from api.cli import figures
from api.cli.job_file import JobName, NewLabels, Sets, put_changes, read_job
from api.cli.rehearsal import DEFAULT_S, CannotTrain, Timeout, answers, lowest_rates
from api.cli.sheet import Sheet
from api.cli.terminal import AsJson, JobFile, console, fail, print_advice, print_json, say
from api.display import duration
from service.job.advice import advice

app = typer.Typer()


@app.command()
def check(
    job: JobFile,
    sets: Sets = None,
    name: JobName = None,
    labels: NewLabels = None,
    timeout: Timeout = DEFAULT_S,
    as_json: AsJson = False,
) -> None:
    """Try a job's workload here: import it, load its data, train some steps, evaluate. Starts no service and no Ray.

    A `workload.factory` is imported from the working folder, as by `run`.
    """
    changes = put_changes({}, sets=sets, name=name, labels=labels)
    spec = read_job(job, changes, as_json=as_json).resolved(str(Path.cwd()))
    print_advice(advice(spec))
    order = {
        "arms": {trial.arm: trial.replica.model_dump(mode="json") for trial in spec.arm_trials()},
        "lowest_rates": lowest_rates(spec.arm_trials()),
        "metric": spec.objective.metric,
        "num_workers": spec.workers.count,
    }
    try:
        found = answers(order, timeout_s=timeout)
    except CannotTrain as error:
        if as_json:
            print_json({"trainable": False, "reason": str(error)})
        fail(f"this workload cannot be trained yet: {error}")
    if as_json:
        print_json({"trainable": True, "arms": found})
        return
    for line in _workload_lines(next(iter(found.values()))):
        say(console(), line)
    console().print()
    console().print(_table(found))
    for arm, each in found.items():
        for remark in each["remarks"]:
            say(console(), f"{arm}: {remark}")
    say(console(), f"it can be trained; `wiretune run {job}` does")


def _workload_lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the facts that are the same in every arm."""
    frozen = found["num_parameters"] - found["num_trained"]
    yield f"model: {found['num_trained']:,} parameters are trained{f', {frozen:,} frozen' if frozen else ''}"
    training = "a stream" if found["num_training"] is None else f"{found['num_training']:,} samples"
    tested = f", {found['num_test']:,} to test" if found["num_test"] else ""
    sizes = f"{training} to train on, {found['num_validation']:,} to validate{tested}"
    yield f"data: {sizes}, loaded in {duration(found['seconds_loading'])}"
    yield f"batch: {found['batch']}"
    yield f"metrics: {', '.join(found['validation'])}"


def _table(found: dict[str, Any]) -> Sheet:
    metrics = list(next(iter(found.values()))["validation"])
    headings = ("loss", "then", "a step", "evaluation", "for backward", "memory")
    sheet = Sheet("arm", *headings, *(f"val. {name}" for name in metrics), title="Here, by one worker", left=("arm",))
    for arm, each in found.items():
        sheet.add_row(
            arm,
            figures.loss(each["losses"][0]),
            figures.loss(each["losses"][-1]),
            f"{1000 * each['seconds_step']:.3g} ms",
            duration(each["seconds_evaluation"]),
            figures.size(each["bytes_kept"]),
            figures.size(each["bytes_peak"]),
            *(figures.loss(each["validation"][name]) for name in metrics),
        )
    return sheet
