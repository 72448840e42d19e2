"""Does a model tell the rate of Schedule-Free and of Muon? Tasks of the suite, trained with them.

    PYTHONPATH=benchmarks python benchmarks/suite/usual_rates.py run OPTIMIZER [--steps 300] [--seeds 0 1]
    PYTHONPATH=benchmarks python benchmarks/suite/usual_rates.py table

The reference is the best of nine rates, a quarter of a decade apart, about the usual one. They are constant, or decay
linearly over the last half where the optimizer needs it. The controller starts from three guesses, and is told what is
usual, or is not. But for AdamW's kind, the run begins with it, so the guess has no influence. The constant of
Schedule-Free SGD was chosen by the tasks with SGD, and twelve of AdamW, trained so too, took no part in it. Those of
the others were chosen by the tasks with AdamW. `table` plays the choice again, one family of data left out at a time.
Results are lines of `usual_rates.jsonl`; what is there is not run again.
"""

import argparse
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from rows import Json, read

from search.bayesian.setup import SearchSetup
from search.bayesian.usual_rate import rate_of_model
from search.config import Budget
from search.optimizer_traits import OPTIMIZER_TRAITS, usual_rate_told_by
from suite.controlled import BO, searched, space_of
from suite.excess import LOST, summarised
from suite.program import add_options, append_missing
from suite.run import GUESSES, SCHEDULES
from suite.tasks import SLOW, TASKS, Task
from suite.training import Line

FILE = Path(__file__).parent / "usual_rates.jsonl"
#: The optimizers, and that of the tasks by which the constant of each was chosen.
CHOSEN_BY = {"schedulefree_sgd": "sgd", "schedulefree_adamw": "adamw", "muon": "adamw"}
#: Tasks of AdamW, which took no part in the choice for Schedule-Free SGD.
OTHERS = (
    "visits-perceptron", "photo-pixels", "manual-lora", "fashion-residual-adamw", "patients-adamw",
    "mnist-conv-norm-adamw", "houses-adamw", "characters-gru", "source-gru", "diamonds-deep", "mnist-perceptron-deep",
    "source-transformer",
)  # fmt: skip
#: The default guess of a job with Schedule-Free SGD; the others start from the guess for AdamW.
SGD_GUESS = 0.1
#: Quarters of a decade about the usual rate.
GRID = range(-5, 4)


def names_of(optimizer: str) -> list[str]:
    chosen_by = [name for name, task in TASKS.items() if task.optimizer == CHOSEN_BY[optimizer]]
    return [*OTHERS, *chosen_by] if usual_rate_told_by(optimizer) == "sharpness" else chosen_by


def task_of(optimizer: str, name: str) -> Task:
    own = TASKS[name]
    decay = own.weight_decay if own.optimizer == CHOSEN_BY[optimizer] else 0.0
    guess = SGD_GUESS if optimizer == "schedulefree_sgd" else own.guess
    return replace(own, optimizer=optimizer, weight_decay=decay, guess=guess)


def run(optimizer: str, steps: Sequence[int], seeds: Sequence[int], part: Sequence[int], tasks: Sequence[str]) -> None:
    cells = [
        {"optimizer": optimizer, "task": name, "steps": length, "seed": seed}
        for length in steps
        for seed in seeds
        for name in tasks or names_of(optimizer)
    ]
    append_missing(FILE, cells, part, measured)


def measured(optimizer: str, task: str, steps: int, seed: int) -> Json:
    """Return the usual rate, losses at the rates about it, and what is exported from guesses, told the rate or not."""
    own = task_of(optimizer, task)
    usual = usual_rate(own, seed)
    row: Json = {"usual": usual}
    row["grid"] = {each: _scheduled(own, usual * 10 ** (each / 4), steps, seed) for each in GRID}
    guesses = GUESSES.values() if usual_rate_told_by(optimizer) == "weights" else [1.0]
    row["told"] = [_controlled(own, each, steps, seed) for each in guesses]
    with nothing_usual(optimizer):
        row["untold"] = [_controlled(own, each, steps, seed) for each in GUESSES.values()]
    return row


@contextmanager
def nothing_usual(optimizer: str) -> Iterator[None]:
    """Let the controller know no rate that is usual for the optimizer."""
    traits = OPTIMIZER_TRAITS[optimizer]
    OPTIMIZER_TRAITS[optimizer] = traits.model_copy(update={"usual": None})
    try:
        yield
    finally:
        OPTIMIZER_TRAITS[optimizer] = traits


def usual_rate(task: Task, seed: int) -> float:
    space = space_of(Line(task, seed), BO, task.guess)
    rate = rate_of_model(SearchSetup(space, BO, Budget(steps=1), seed=0))
    assert rate is not None
    return rate


def _scheduled(task: Task, rate: float, steps: int, seed: int) -> float | None:
    line, shape = Line(task, seed), SCHEDULES["half" if task.decays else "constant"]
    losses = line.train([rate * shape(step / steps) for step in range(steps)])
    loss = line.evaluate() if len(losses) == steps else math.inf
    return loss if math.isfinite(loss) else None


def _controlled(task: Task, factor: float, steps: int, seed: int) -> float:
    return searched(Line(task, seed), task.guess * factor, steps, seed).flattered


# -- the table ---------------------------------------------------------------------------------------------


def table() -> None:
    """Print how far above the best rate runs end, by optimizer, length and group; and what each family would choose."""
    groups = defaultdict[tuple[str, int, str], list[Json]](list)
    for row in read(FILE):
        is_new = row["optimizer"] == "schedulefree_sgd" and row["task"] in OTHERS
        groups[row["optimizer"], row["steps"], "took no part" if is_new else TASKS[row["task"]].group].append(row)
    print("| optimizer | steps | tasks | runs | told, in %: mean, median, lost | untold | lower, higher by 1 % |")
    print("| --- " * 7 + "|")
    for (optimizer, steps, group), found in groups.items():
        told, untold = ([x for row in found for x in _above(row, row[what])] for what in ("told", "untold"))
        ratios = [a / b for row in found for a, b in _pairs(row)]
        lower, higher = sum(each < 0.99 for each in ratios), sum(each > 1.01 for each in ratios)
        print(
            f"| {optimizer} | {steps} | {group} | {len(found)} | {_told(told)} | {_told(untold)} | {lower}, {higher} |"
        )
    for optimizer in dict.fromkeys(row["optimizer"] for row in read(FILE)):
        print(f"\n{optimizer}")
        print("\n".join(_chosen(optimizer)))


def _chosen(optimizer: str) -> Iterator[str]:
    """Yield, for each family of data, the constant that the others choose at 300 steps, and where it then ends."""
    regrets = defaultdict[str, list[dict[int, float]]](list)
    for row in read(FILE):
        task = TASKS[row["task"]]
        is_of_choice = task.optimizer == CHOSEN_BY[optimizer] and task.added != SLOW
        if row["optimizer"] == optimizer and row["steps"] == 300 and is_of_choice:
            losses = [math.inf if loss is None else loss for loss in row["grid"].values()]
            above = [min(LOST, each) for each in _above(row, losses)]
            regrets[task.family].append(dict(zip(map(int, row["grid"]), above, strict=True)))
    usual, ended = OPTIMIZER_TRAITS[optimizer].usual or math.nan, []
    for family, own in sorted(regrets.items()):
        others = [grid for name, grids in regrets.items() if name != family for grid in grids]
        best = min(GRID, key=lambda each: statistics.fmean(grid[each] for grid in others))
        ended += [grid[best] for grid in own]
        yield f"without {family}: {usual * 10 ** (best / 4):.2g}; {family} then ends {_told(ended[-len(own) :])}"
    yield f"families left out end {_told(ended)}"


def _pairs(row: Json) -> Iterator[tuple[float, float]]:
    """Yield the losses of a run that was told and of one that was not, from the same guess."""
    told = row["told"] if len(row["told"]) > 1 else row["told"] * len(row["untold"])
    yield from zip(told, row["untold"], strict=True)


def _above(row: Json, losses: Sequence[float]) -> list[float]:
    best = min(loss for loss in row["grid"].values() if loss is not None)
    return [loss / best - 1 for loss in losses]


def _told(above: Sequence[float]) -> str:
    found = summarised(above)
    return f"{100 * found.mean:+.1f}, {100 * found.median:+.1f}, {found.lost} of {found.num_runs}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("table")
    runner = commands.add_parser("run")
    runner.add_argument("optimizer", choices=CHOSEN_BY)
    runner.add_argument("--tasks", nargs="+", choices=TASKS, help="those of the optimizer, unless given")
    add_options(runner, steps=(300,), seeds=(0, 1))
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "table":
        return table()
    return run(given.optimizer, given.steps, given.seeds, given.part, given.tasks)


if __name__ == "__main__":
    main()
