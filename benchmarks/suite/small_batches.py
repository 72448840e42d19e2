"""Trains tasks of the suite on small batches, beside the best of six cosines.

    PYTHONPATH=benchmarks python benchmarks/suite/small_batches.py run [--seeds 0 1 2] [--part INDEX COUNT]
    PYTHONPATH=benchmarks python benchmarks/suite/small_batches.py table

The guesses are those of the suite, lowered with the batch: in proportion for SGD, by its root for AdamW. Results are
lines of `small_batches.jsonl`; what is there is not run again.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rows import Json, read

from suite.controlled import searched
from suite.excess import LOST, summarised
from suite.program import append_missing, arguments
from suite.run import GUESSES
from suite.tasks import TASKS, Task
from suite.training import SCHEDULES, Line

FILE = Path(__file__).parent / "small_batches.jsonl"
NUM_STEPS, BATCHES = 600, (4, 1)
NAMES = (
    "digits-perceptron", "mnist-perceptron", "fashion-perceptron", "houses-perceptron", "weather-perceptron",
    "marriages-perceptron", "visits-perceptron", "words-embedding", "manual-neighbours", "source-neighbours",
    "mnist-perceptron-adamw", "houses-adamw", "photo-pixels", "patients-adamw",
)  # fmt: skip
#: Half decades about the guess at which a run without a search is trained with a cosine.
GRID = range(-3, 3)


def task_of(name: str, batch_size: int) -> Task:
    task = TASKS[name]
    power = 1.0 if task.optimizer == "sgd" else 0.5
    return replace(task, batch_size=batch_size, guess=task.guess * (batch_size / task.batch_size) ** power)


def run(seeds: Sequence[int], part: Sequence[int]) -> None:
    cells = [{"task": name, "batch": batch, "seed": seed} for seed in seeds for batch in BATCHES for name in NAMES]
    append_missing(FILE, cells, part, measured)


def measured(task: str, batch: int, seed: int) -> Json:
    """Return the loss of the best cosine, and what is exported from each guess."""
    definition = task_of(task, batch)
    cosine = _best_cosine(definition, seed)
    exported = {
        guess: searched(Line(definition, seed), definition.guess * factor, NUM_STEPS, seed).flattered
        for guess, factor in GUESSES.items()
    }
    return {"cosine": cosine, "exported": exported}


def _best_cosine(task: Task, seed: int) -> float:
    losses = []
    for half_decades in GRID:
        line, rate = Line(task, seed), task.guess * 10 ** (half_decades / 2)
        line.train([rate * SCHEDULES["cosine"](step / NUM_STEPS) for step in range(NUM_STEPS)])
        losses.append(line.evaluate())
    return min(filter(math.isfinite, losses))


def table() -> None:
    """Print how far above the best cosine runs end, by task and batch, and of all of a batch."""
    cells = defaultdict[tuple[str, int], list[float]](list)
    for row in read(FILE):
        cells[row["task"], row["batch"]] += [loss / row["cosine"] - 1 for loss in row["exported"].values()]
    print("| task | batch | above the best cosine in %: median | worst |\n" + "| --- " * 4 + "|")
    for (task, batch), above in cells.items():
        print(f"| {task} | {batch} | {100 * statistics.median(above):+.0f} | {100 * max(above):+.0f} |")
    for size in BATCHES:
        found = summarised(each for (_, batch), above in cells.items() if batch == size for each in above)
        print(f"batches of {size}: median {100 * found.median:+.1f} %, mean {100 * found.mean:+.1f} %, ", end="")
        print(f"{found.lost} of {found.num_runs} at least {LOST:.0%} above")


def main() -> None:
    given = arguments(__doc__, seeds=(0, 1, 2))
    run(given.seeds, given.part) if given.what == "run" else table()


if __name__ == "__main__":
    main()
