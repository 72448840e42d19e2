"""The page that says which method to choose: recorded tasks on usual links, with the numbers behind each choice."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import get_args

import yaml

from service.job.spec import JobSpec
from service.prediction.evidence import Recorded, Task, recorded
from service.prediction.predict import (
    DENSE,
    MethodPrediction,
    Prediction,
    PredictionRequest,
    Span,
    best,
    judged,
    predict,
)

LINKS = ((10.0, 20.0), (100.0, 1.0), (1000.0, 0.2))  # Mbit/s, ms
WORKERS = (2, 4, 8)
#: Steps to a loss by dense training, for which times are told.
STEPS = 1000
#: Methods of a row besides the first.
NUM_OTHERS = 2

INTRODUCTION = (
    "`make docs` writes this page from recorded runs and the predictor. `wiretune advise JOB.yaml` says it for a job "
    "(of your own model, with `--like TASK`).",
    "[`wiretune predict`](predict.md) lists all methods, on a link and with workers that you do not have yet. "
    "Names such as `local_sgd 8, topk 10 %` are explained [below](#how-to-read-it).",
)
RULE = (
    "- **Start with `powersgd`, rank 4.** For the models of about 5 million parameters it is first in 18 of 27 rows, "
    "and among *also* in 8 more.",
    "- **For a model of less than a million parameters take `local_sgd 8, topk 10 %`**, if the workers' data are "
    "alike. It is first in 8 of 18 rows, and among *also* in 6 more.",
    "- **Take `dgc` only if its optimizer is SGD without momentum**, since `dgc` has the momentum itself. "
    "It is first in 10 of 45 rows.",
    "- **If you are unsure, let [`auto`](auto.md) try several on your own link.** It does not try `dgc`, local "
    "averages by top-k or slow momentum, which are first in 21 of 45 rows.",
)
READING = (
    "- *Choose* is the method that is predicted to reach dense training's loss first. Four of five runs should fall "
    "within the span.",
    "- *Also* are methods that the prediction cannot tell from the first one. One that missed the loss with a recorded "
    "seed is never chosen, and its time has no upper end.",
    "- Names are those of the records. `wiretune advise JOB.yaml` prints a method's lines for your job: "
    "`local_sgd 8, topk 10 %` is `exchange: {kind: topk, density: 0.1}` with `sync: {kind: local_sgd, period: 8}`. "
    "`wiretune predict JOB.yaml --json` has them for every method that fits the job.",
    "- *Steps* come from the rows in brackets, at the nearest number of hosts that was recorded. One seed says little.",
    "- Steps were recorded with SGD and momentum, those of `transformer` with AdamW. A job that names no optimizer "
    "trains with AdamW. There `dgc` needs `optimizer: {kind: sgd, momentum: 0}`, and `threshold 1 %` takes more steps.",
    "- A method that did not reach the loss on a task is not in its table. `wiretune predict` lists its steps.",
    "- The rows are short runs of small models. A larger model may need other steps; the bytes hold.",
)


def page(known: Recorded | None = None) -> Iterator[str]:
    """Yield the lines of docs/choosing.md."""
    found = known or recorded()
    yield from ("# Which method", "")
    yield from (*INTRODUCTION, "", *RULE)
    for task, about in found.tasks.items():
        yield from ("", f"## {about.model.capitalize()} parameters", "")
        yield f"Task `{task}`. A step computes for {about.compute_ms:g} ms. Dense training takes {STEPS} steps."
        yield ""
        yield "| link | workers | choose | time to dense's loss | dense | steps, in those of dense | a step | also |"
        yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
        for (mbps, latency_ms), workers in product(LINKS, WORKERS):
            yield _row(_prediction(found, task, mbps, latency_ms, workers))
    yield from ("", "## How to read it", "")
    yield from READING
    yield from (f"- {sentence[0].upper()}{sentence[1:]}." for sentence in _shared(found))


def _prediction(known: Recorded, task: Task, mbps: float, latency_ms: float, workers: int) -> Prediction:
    about = known.tasks[task]
    request = PredictionRequest(
        job=JobSpec.model_validate({**about.job, "budget": {"steps": STEPS}}),
        compute_ms=about.compute_ms,
        mbps=mbps,
        latency_ms=latency_ms,
        workers=workers,
        shapes=about.shapes,
        like=task,
        dense_steps=STEPS,
    )
    return predict(request, known)


def _row(found: Prediction) -> str:
    first, *others = best(found)
    dense = next(each for each in found.methods if each.method == DENSE)
    assert first.loss_s is not None and dense.loss_s is not None and first.steps_ratio is not None
    cells = (
        f"{found.mbps:g} Mbit/s, {found.latency_ms:g} ms",
        str(found.workers),
        f"`{first.method}`",
        f"{_time(first.loss_s.expected)} ({_time(first.loss_s.low)} to {_time(first.loss_s.high)})",
        _time(dense.loss_s.expected),
        f"{first.steps_ratio.expected:.2f} ({first.known_from})" if first.method != DENSE else "1",
        f"{1e3 * first.step_s.expected:.0f} ms, {first.bytes_per_step / 1e6:.3g} MB",
        ", ".join(_ties(first, others)[:NUM_OTHERS]) or "-",
    )
    return f"| {' | '.join(cells)} |"


def _shared(known: Recorded) -> Iterator[str]:
    """Yield the assumptions that all rows share."""
    task = next(iter(known.tasks))
    sentences = _prediction(known, task, *LINKS[0], WORKERS[0]).assumptions
    yield from (
        sentence for sentence in sentences if "recorded task" not in sentence and "in every round" not in sentence
    )


def advised(found: Prediction, size: Callable[[float], str]) -> Iterator[str]:
    """Yield what to choose for a job on its link, in a few lines, with the numbers behind it; `size` words bytes."""
    first, *others = best(found)
    dense = next(each for each in found.methods if each.method == DENSE)
    is_known = first.loss_s is not None and dense.loss_s is not None
    why = "" if is_known else " has the shortest step; how its loss goes here is unknown"
    yield f"over {found.mbps:g} Mbit/s and {found.latency_ms:g} ms, {found.workers} workers: `{first.method}`{why}"
    if not is_known:
        tasks = ", ".join(f"`{task}`" for task in get_args(Task))
        yield (
            "  to count what steps teach as well, name with `--like` a recorded task that is like yours "
            f"({tasks}), or none, if none is like it"
        )
    yield "  in the job:"
    yield from (
        f"    {line}" for line in yaml.safe_dump(first.job, default_flow_style=None, sort_keys=False).splitlines()
    )
    yield f"  a step: {_step(first, size)}; dense: {_step(dense, size)}"
    if first.loss_s and dense.loss_s:
        yield (
            f"  to the loss that dense training has after {found.dense_steps} steps: {_time(first.loss_s.expected)} "
            f"({_time(first.loss_s.low)} to {_time(first.loss_s.high)}), dense {_time(dense.loss_s.expected)}; "
            f"steps from {first.known_from}"
        )
        yield f"  as good, as far as is known: {', '.join(_ties(first, others)[:4]) or 'none'}"
    else:
        yield f"  it may take {first.spare_ratio:.2g} times dense training's steps and still be as fast"
    if first.pays_below_mbps or first.pays_above_mbps:
        yield f"  it beats dense training {rates_that_pay(first)} Mbit/s"


def _ties(first: MethodPrediction, others: Sequence[MethodPrediction]) -> list[str]:
    """Return the methods that the prediction cannot tell from the first, as they are told."""
    assert first.loss_s is not None
    return [
        f"`{each.method}`{_missed(each.loss_s, each.num_missed)}"
        for each in others
        if each.loss_s and judged(each.loss_s, first.loss_s) == "tie"
    ]


def _missed(loss_s: Span, num_missed: int) -> str:
    """Return from when on the loss may be reached, if a seed missed it: then there is no latest time."""
    if not num_missed:
        return ""
    return f" ({_time(loss_s.low)} or more: {num_missed} {'seed' if num_missed == 1 else 'seeds'} missed)"


def rates_that_pay(each: MethodPrediction) -> str:
    """Return the rates at which the method beats dense training, as `below 80` (Mbit/s), `any` or `none`."""
    below, above = each.pays_below_mbps, each.pays_above_mbps
    if below == 0:
        return "none"
    if above is None:
        return "any" if below is None else f"below {below:g}"
    return f"above {above:g}" if below is None else f"from {above:g} to {below:g}"


def _step(each: MethodPrediction, size: Callable[[float], str]) -> str:
    span = each.step_s
    seconds = f"{1e3 * span.expected:.0f} ms ({1e3 * span.low:.0f} to {1e3 * span.high:.0f})"
    return f"{seconds}, {size(each.bytes_per_step)}"


def _time(seconds: float) -> str:
    """Return seconds to two digits, in minutes or hours where they are many."""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.2g} {unit}" if seconds < 99.5 * length else f"{seconds / length:.0f} {unit}"
    return f"{seconds:.2g} s" if seconds < 99.5 else f"{seconds:.0f} s"
