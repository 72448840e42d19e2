"""The page that says which method to choose: recorded tasks on usual links, with the numbers behind each choice.

python docs/choosing_page.py > docs/choosing.md
"""

from collections.abc import Iterator
from itertools import product

from service.job.spec import JobSpec
from service.prediction.choosing import duration, ties
from service.prediction.evidence import Recorded, recorded
from service.prediction.predict import DENSE, PredictionRequest, best, predict
from service.wire.predictions import Prediction, Task

LINKS = ((10.0, 20.0), (100.0, 1.0), (1000.0, 0.2))  # Mbit/s, ms
WORKERS = (2, 4, 8)
#: Steps to a loss by dense training, for which times are told.
STEPS = 1000
#: Methods of a row besides the first.
NUM_OTHERS = 2

INTRODUCTION = (
    "`make docs` writes this page from recorded runs and the predictor. `wiretune advise JOB.yaml --mbps 100` says it "
    "for a job (of your own model, with `--like TASK`).",
    "[`wiretune predict`](predict.md) lists all methods, on a link and with workers that you do not have yet. "
    "Names such as `local_sgd 8, topk 10 %` are explained [below](#how-to-read-it). What each method does, "
    "costs and is for stands [in exchange](exchange.md#choose-a-kind) and [in local updates](sync.md#choose-a-kind).",
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
    "- Names are those of the records. `wiretune advise JOB.yaml --mbps 100` prints a method's lines for your job: "
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
        f"{duration(first.loss_s.expected)} ({duration(first.loss_s.low)} to {duration(first.loss_s.high)})",
        duration(dense.loss_s.expected),
        f"{first.steps_ratio.expected:.2f} ({first.known_from})" if first.method != DENSE else "1",
        f"{1e3 * first.step_s.expected:.0f} ms, {first.bytes_per_step / 1e6:.3g} MB",
        ", ".join(ties(first, others)[:NUM_OTHERS]) or "-",
    )
    return f"| {' | '.join(cells)} |"


def _shared(known: Recorded) -> Iterator[str]:
    """Yield the assumptions that all rows share."""
    task = next(iter(known.tasks))
    sentences = _prediction(known, task, *LINKS[0], WORKERS[0]).assumptions
    yield from (
        sentence for sentence in sentences if "recorded task" not in sentence and "in every round" not in sentence
    )


if __name__ == "__main__":
    print("\n".join(page()))
