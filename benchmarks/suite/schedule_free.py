"""Does a model's sharpness tell the rate of Schedule-Free SGD? Tasks of the suite, trained with it.

    PYTHONPATH=benchmarks python benchmarks/suite/schedule_free.py run [--steps 300 1000] [--seeds 0 1]
    PYTHONPATH=benchmarks python benchmarks/suite/schedule_free.py table

The constant of the usual rate was chosen by the tasks with SGD. Twelve of AdamW, trained so too, took no part in it.
The reference is the best of nine constant rates, a quarter of a decade apart, about the usual one. The controller
begins with the usual rate, or searches from three guesses: what a job takes by default, a tenth and ten times of it.
Results are lines of `schedule_free.jsonl`; what is there is not run again.
"""

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from search import strategies
from search.bayesian.wide_optimum import SHARPNESS_POWER
from search.config import OPTIMIZER_TRAITS, BoConfig, Budget
from search.space import SearchSpace
from search.types import Values
from suite.controlled import train
from suite.run import GRADIENTS_OF_SHARPNESS, GUESSES
from suite.tasks import SLOW, TASKS, Task
from suite.training import Line

FILE = Path(__file__).parent / "schedule_free.jsonl"
KIND, GUESS = "schedulefree_sgd", 0.1
#: Tasks of AdamW, which took no part.
OTHERS = (
    "visits-perceptron", "photo-pixels", "manual-lora", "fashion-residual-adamw", "patients-adamw",
    "mnist-conv-norm-adamw", "houses-adamw", "characters-gru", "source-gru", "diamonds-deep", "mnist-perceptron-deep",
    "source-transformer",
)  # fmt: skip
NAMES = (*OTHERS, *(name for name, task in TASKS.items() if task.optimizer == "sgd"))
#: Quarters of a decade about the usual rate.
GRID = range(-5, 4)
#: A run that ends further above the reference is lost. In a mean it counts as so far.
LOST = 0.5


def task_of(name: str) -> Task:
    own = TASKS[name]
    return replace(own, optimizer=KIND, weight_decay=own.weight_decay if own.optimizer == "sgd" else 0.0)


def run(steps: Sequence[int], seeds: Sequence[int], part: Sequence[int], tasks: Sequence[str]) -> None:
    done = {(row["task"], row["steps"], row["seed"]) for row in recorded()}
    cells = [(name, length, seed) for length in steps for seed in seeds for name in tasks]
    for name, length, seed in (cell for cell in cells[part[0] :: part[1]] if cell not in done):
        row: dict[str, Any] = {"task": name, "steps": length, "seed": seed, "sharpness": start(name, seed).sharpness()}
        usual = (OPTIMIZER_TRAITS[KIND].usual or math.nan) / row["sharpness"] ** SHARPNESS_POWER
        row["grid"] = {quarter: _constant(start(name, seed), usual * 10 ** (quarter / 4), length) for quarter in GRID}
        row["by sharpness"] = _controlled(start(name, seed), GUESS, length, seed, sharpness=row["sharpness"])
        row["by probes"] = [_controlled(start(name, seed), GUESS * each, length, seed) for each in GUESSES.values()]
        with FILE.open("a") as file:
            file.write(json.dumps(row) + "\n")


def start(name: str, seed: int) -> Line:
    return Line(task_of(name), seed)


def _constant(line: Line, rate: float, steps: int) -> float | None:
    losses = line.train([rate] * steps)
    loss = line.evaluate() if len(losses) == steps else math.inf
    return loss if math.isfinite(loss) else None


def _controlled(line: Line, guess: float, steps: int, seed: int, *, sharpness: float | None = None) -> float:
    left = steps - (0 if sharpness is None else GRADIENTS_OF_SHARPNESS)
    space = SearchSpace(
        optimizer=KIND,
        batch_size=line.workload.batch_size,
        guess=Values(learning_rate=guess),
        sharpness=sharpness,
    )
    return train(line, strategies.build(BoConfig(), space=space, seed=seed, budget=Budget(steps=left)), left).exported


def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.exists() else []


def _above(row: dict[str, Any]) -> tuple[dict[int, float], float, list[float]]:
    """Return how far above the best of the grid each of its rates ends, the usual rate's run, and those that search."""
    best = min(loss for loss in row["grid"].values() if loss is not None)
    grid = {int(each): LOST if loss is None else min(LOST, loss / best - 1) for each, loss in row["grid"].items()}
    return grid, row["by sharpness"] / best - 1, [loss / best - 1 for loss in row["by probes"]]


def table() -> None:
    """Print how far above the best rate runs end, by length and group; and what constant each family would choose."""
    groups = defaultdict[tuple[int, str], list[dict[str, Any]]](list)
    for row in recorded():
        kind = "took no part" if row["task"] in OTHERS else TASKS[row["task"]].group
        groups[row["steps"], kind].append(row)
    print("| steps | tasks | runs | by sharpness, in %: mean, median, lost | by probes | lower, higher by 1 % |")
    print("| --- " * 6 + "|")
    for (steps, kind), found in groups.items():
        known = [_above(row) for row in found]
        usual, searched = [each for _, each, _ in known], [each for _, _, runs in known for each in runs]
        ratios = [row["by sharpness"] / loss for row in found for loss in row["by probes"]]
        lower, higher = sum(each < 0.99 for each in ratios), sum(each > 1.01 for each in ratios)
        print(f"| {steps} | {kind} | {len(found)} | {_told(usual)} | {_told(searched)} | {lower}, {higher} |")
    chosen_by = [
        row
        for row in recorded()
        if row["steps"] == 300 and row["task"] not in OTHERS and TASKS[row["task"]].added != SLOW
    ]
    regrets = {row["task"]: _above(row)[0] for row in chosen_by}
    for family in sorted({TASKS[name].family for name in regrets}):
        others = [grid for name, grid in regrets.items() if TASKS[name].family != family]
        best = min(GRID, key=lambda each: statistics.fmean(grid[each] for grid in others))
        own = [grid[best] for name, grid in regrets.items() if TASKS[name].family == family]
        print(f"without {family}: usual x {10 ** (best / 4):.2f}; {family} then ends {_told(own)}")


def _told(above: Sequence[float]) -> str:
    mean = 100 * statistics.fmean(min(LOST, each) for each in above)
    lost = sum(each >= LOST for each in above)
    return f"{mean:+.1f}, {100 * statistics.median(above):+.1f}, {lost} of {len(above)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--steps", nargs="+", type=int, default=[300, 1000])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--tasks", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--part", nargs=2, type=int, default=(0, 1), metavar=("INDEX", "COUNT"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    run(given.steps, given.seeds, given.part, given.tasks) if given.what == "run" else table()


if __name__ == "__main__":
    main()
