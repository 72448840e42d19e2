"""Does starting over help runs that learn their data by heart (`start_over`)? Every run is trained with it and without.

    PYTHONPATH=benchmarks python benchmarks/suite/small_data.py run   [--steps 1000] [--seeds 3 4] [--part 0 2]
    PYTHONPATH=benchmarks python benchmarks/suite/small_data.py table

Tasks of the suite train on 200 and on 800 of their samples, beside those that have no more, and tasks on data that no
choice has seen. Whole ones must not change.
The controller starts from the right guess, and all that it trains is charged. What is compared is what a job exports. A
pair is a line of `small_data.jsonl`. The rule was chosen with seed 11; other seeds took no part.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from rows import Json, read
from sklearn.datasets import load_iris
from statsmodels.datasets import star98
from torch.nn import functional

from search.config import BoConfig
from suite.averages import change, summary
from suite.controlled import searched
from suite.nets import perceptron
from suite.program import append_missing, arguments
from suite.tasks import (
    PER_CLASS,
    TASKS,
    Data,
    Loss,
    Task,
    patients,
    rows_of,
    standardised,
    tumours,
    voters,
    wines,
)
from suite.training import Averaged

FILE = Path(__file__).with_name("small_data.jsonl")
#: Training samples that are left.
SIZES = (200, 800)
CUT = (
    "digits-perceptron", "digits-conv-norm", "mnist-perceptron-adamw", "mnist-conv", "mnist-residual", "mnist-tanh",
    "mnist-perceptron-deep", "mnist-lenet-adamw", "fashion-perceptron", "fashion-conv-norm", "words-embedding",
    "words-gru", "marriages-perceptron", "diamonds-perceptron", "diamonds-deep", "houses-adamw", "textures-conv",
    "textures-vit", "visits-perceptron", "phones-neighbours", "manual-neighbours", "weather-perceptron",
)  # fmt: skip
NATURAL = ("wines-perceptron", "voters-perceptron", "patients-adamw", "tumours-perceptron")


def cut(task: Task, num_samples: int) -> Task:
    """Return `task` with so many training samples, and a quarter as many for validation."""

    def data() -> Data:
        inputs, targets = task.data()
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(1))[: int(num_samples / 0.8)]
        return inputs[order], targets[order]

    return replace(task, name=f"{task.name}@{num_samples}", data=data)


_ADDED = (
    Task("tumours-wide", "tumours", "adamw", 3e-3, tumours, lambda: perceptron(30, 512, 2)),
    Task("wines-sgd", "wines", "sgd", 0.1, wines, lambda: perceptron(13, 64, 3), PER_CLASS, 16),
    Task("voters-adamw", "voters", "adamw", 3e-3, voters, lambda: perceptron(9, 64, 7)),
    Task("patients-sgd", "patients", "sgd", 0.03, patients, lambda: perceptron(10, 64, 1), functional.mse_loss),
)


@cache
def irises() -> Data:
    inputs, labels = load_iris(return_X_y=True)
    return standardised(inputs), torch.tensor(labels)


@cache
def schools() -> Data:
    """Return 20 traits of 303 Californian school districts, and the standardised share of pupils above the median."""
    table = star98.load_pandas().data.to_numpy()
    shares = table[:, :1] / (table[:, :1] + table[:, 1:2])
    return standardised(table[:, 2:]), standardised(shares)


@cache
def counties() -> Data:
    """Return six traits of 437 counties of the American Midwest, and the standardised share of poor inhabitants."""
    names = ("popdensity", "percwhite", "percblack", "perchsd", "percollege", "inmetro", "percbelowpoverty")
    numbers = np.array([[float(row[name]) for name in names] for row in rows_of("midwest.csv")])
    numbers[:, 0] = np.log(numbers[:, 0])
    return standardised(numbers[:, :-1]), standardised(numbers[:, -1:])


@cache
def penguins() -> Data:
    """Return four measures of 342 penguins, and the island that each lives on."""
    names = ("bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g")
    rows = [row for row in rows_of("penguins.csv") if row[names[0]] not in ("", "NA")]
    islands = sorted({row["island"] for row in rows})
    return standardised(np.array([[float(row[name]) for name in names] for row in rows])), torch.tensor(
        [islands.index(row["island"]) for row in rows]
    )


def _with_both(
    name: str, data: Callable[[], Data], widths: tuple[int, ...], loss: Loss, rate: float
) -> tuple[Task, ...]:
    """Return the task of a perceptron under SGD and under AdamW."""
    return tuple(
        Task(f"{name}-{optimizer}", name, optimizer, guess, data, lambda: perceptron(*widths), loss, 16)
        for optimizer, guess in (("sgd", rate), ("adamw", 3e-3))
    )


#: On data that no choice of a rule or a constant has seen.
_UNSEEN = (
    *_with_both("irises", irises, (4, 32, 3), PER_CLASS, 0.1),
    *_with_both("penguins", penguins, (4, 64, 3), PER_CLASS, 0.1),
    *_with_both("schools", schools, (20, 64, 1), functional.mse_loss, 0.03),
    *_with_both("counties", counties, (6, 64, 32, 1), functional.mse_loss, 0.03),
)
_CUT = tuple(cut(TASKS[name], size) for size in SIZES for name in CUT)
_WHOLE = tuple(TASKS[name] for name in CUT)
_SMALL = (*(TASKS[name] for name in NATURAL), *_ADDED)
GROUPS = {
    "have no more": _SMALL,
    **{f"{size} samples": tuple(each for each in _CUT if each.name.endswith(f"@{size}")) for size in SIZES},
    "whole": _WHOLE,
    "unseen data": _UNSEEN,
}
ALL = {task.name: task for group in GROUPS.values() for task in group}


def run(tasks: Sequence[str], steps: Sequence[int], seeds: Sequence[int], part: Sequence[int]) -> None:
    """Run what is missing, and append each pair to the file."""
    cells = [{"task": task, "steps": each, "seed": seed} for each in steps for seed in seeds for task in tasks]
    append_missing(FILE, cells, part, pair)


def pair(task: str, steps: int, seed: int) -> Json:
    """Return what is exported with and without starting over, and how often the run started over."""
    exported, times = dict[str, float](), 0
    for name, starts in (("goes_on", False), ("starts_over", True)):
        line = Averaged(ALL[task], seed)
        done = searched(line, ALL[task].guess, steps, seed, controller=BoConfig(start_over=starts))
        exported[name] = done.flattered
        times = sum("starts over" in each.reason for each in done.decisions)
    return exported | {"times": times}


def table() -> None:
    """Print by what share exports are lower, for each length and group, and the runs that differ most."""
    rows = [row for row in read(FILE) if row["goes_on"] > 0]
    print("| steps | tasks | pairs, started over | mean | median | lower and higher by more than 1 % |")
    print("| --- | --- | --- | --- | --- | --- |")
    for steps in sorted({row["steps"] for row in rows}):
        for group, tasks in GROUPS.items():
            names = {task.name for task in tasks}
            found = [row for row in rows if row["steps"] == steps and row["task"] in names]
            if found:
                print(f"| {steps:,} | {group} | {_told(found)} |")
    changes = sorted((_change(row), row["task"]) for row in rows)
    print("\nmost:", ", ".join(f"`{task}` {100 * change:+.0f} %" for change, task in changes[:8]))
    print("least:", ", ".join(f"`{task}` {100 * change:+.1f} %" for change, task in changes[-5:]))


def _told(rows: Sequence[Json]) -> str:
    started = sum(row["times"] > 0 for row in rows)
    return f"{len(rows)}, {started} | {summary([_change(row) for row in rows])}"


def _change(row: Json) -> float:
    return change(row["goes_on"], row["starts_over"])


def main() -> None:
    given = arguments(__doc__, tasks=ALL, steps=(1000,), seeds=(3, 4))
    run(given.tasks, given.steps, given.seeds, given.part) if given.what == "run" else table()


if __name__ == "__main__":
    main()
