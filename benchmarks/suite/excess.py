"""By what share of a task's reference recorded runs end above it. Reads rows alone: no torch, no rival."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROWS = Path(__file__).parent / "rows.jsonl"
OPTIMIZER_ROWS = ROWS.with_name("optimizers.jsonl")
#: A loss that is not finite, or absurd, counts as this many times the reference.
MOST = 100.0
#: A run that ends by this share above its reference, or further, is lost. In a mean it counts as so far.
LOST = 0.5
#: How arms are called by which of their losses: at the run's end, and of what is exported. `flattered` is measured on
#: the samples that chose the export, `exported` on others (docs/decisions/0051). Older rows have no `exported`.
SUFFIXES = {"loss": "", "exported": ", exported", "flattered": ", exported, flattered"}
#: The kinds of optimizer that are compared with each other, task by task.
KINDS = ("sgd", "adamw", "schedulefree_sgd", "muon")
Row = dict[str, Any]
Excesses = dict[tuple[str, str], dict[str, list[float]]]  # by arm and task, of each run
Arm = tuple[str, float]  # of the grid: a schedule, and a rate's decimal logarithm
#: The arm of somebody who knows the task from other seeds, at a price that is not charged.
KNOWN_BEFORE = "grid", "best of the other seeds"


class Summary(NamedTuple):
    """By what share of their reference runs end above it; `lost` of them are lost."""

    mean: float
    median: float
    lost: int
    num_runs: int


def summarised(above: Iterable[float]) -> Summary:
    """Summarise runs that end by these shares above their references. Raises StatisticsError if there are none."""
    runs = list(above)
    mean = statistics.fmean(min(LOST, each) for each in runs)
    return Summary(mean, statistics.median(runs), sum(each >= LOST for each in runs), len(runs))


def references(known: Sequence[Row], steps: int) -> dict[str, float]:
    """Return each task's loss with the schedule and rate of the grid that are best on the mean of its seeds."""
    return {task: min(map(_mean, arms.values())) for task, arms in _grids(known, steps).items()}


def _grids(known: Sequence[Row], steps: int) -> dict[str, dict[Arm, dict[int, float]]]:
    """Return each task's losses of the grid, by schedule and rate and by seed, of those that all its seeds have."""
    losses: dict[str, dict[Arm, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in known:
        if row["what"] == "grid" and row["steps"] == steps:
            losses[row["task"]][row["arm"], round(math.log10(row["rate"]), 3)][row["seed"]] = row["loss"]
    whole = {task: max(map(len, arms.values())) for task, arms in losses.items()}
    return {
        task: {arm: each for arm, each in arms.items() if len(each) == whole[task]} for task, arms in losses.items()
    }


def _mean(by_seed: dict[int, float]) -> float:
    return statistics.fmean(by_seed.values())


def _known_before(arms: dict[Arm, dict[int, float]]) -> list[float]:
    """Return each seed's loss with the schedule and rate that are best on the mean of the other seeds."""
    seeds = sorted({seed for each in arms.values() for seed in each})

    def loss(seed: int) -> float:
        others = [({key: each[key] for key in seeds if key != seed}, each[seed]) for each in arms.values()]
        return min(others, key=lambda pair: _mean(pair[0]))[1]

    return [loss(seed) for seed in seeds] if len(seeds) > 1 else []


def above(loss: float, reference: float) -> float:
    """Return the share of the reference that a loss is above it, `MOST` at most."""
    excess = loss / reference - 1
    return excess if excess < MOST else MOST


def excesses(known: Sequence[Row], steps: int) -> Excesses:
    """Return by what share of the reference each run that is no part of the grid ends above it.

    And so does the grid's best by the other seeds: the reference itself was chosen by the very runs that it is.
    """
    reference = references(known, steps)
    arms: Excesses = defaultdict(lambda: defaultdict(list))
    for task, grid in _grids(known, steps).items():
        if losses := _known_before(grid):
            arms[KNOWN_BEFORE][task] = [above(loss, reference[task]) for loss in losses]
    for row in known:
        if row["steps"] == steps and row["what"] != "grid" and row["task"] in reference:
            for loss, suffix in SUFFIXES.items():
                if loss in row:
                    arms[row["what"], row["arm"] + suffix][row["task"]].append(above(row[loss], reference[row["task"]]))
    return arms


def beside_each_other(known: Sequence[Row], steps: int) -> dict[str, float]:
    """Return by what share each kind ends above the lowest loss of its task, on the mean of the runs that all have."""
    ends = defaultdict[tuple[str, int], dict[str, float]](dict)
    for row in known:
        if row["steps"] == steps and row["arm"] in KINDS:
            ends[row["task"], row["seed"]][row["arm"]] = row["flattered"]
    whole = [each for each in ends.values() if len(each) == len(KINDS)]
    return {kind: summarised(above(each[kind], min(each.values())) for each in whole).mean for kind in KINDS}
