"""Does the controller do as well on tasks unlike those that it was made with (`odd_tasks.py`)?

    PYTHONPATH=benchmarks python benchmarks/suite/odd.py run [--steps 300] [--seeds 0 1] [--tasks ...] [--part 0 2]
    PYTHONPATH=benchmarks python benchmarks/suite/odd.py table

The reference of a task is the best of four schedules at four rates, half a decade apart, on the mean of its seeds. They
lie about the rate of a wide grid that is best with a linear decay and the first seed. The controller starts from the
best rate of a cosine, from a tenth of it and from ten times as much, and its search is charged. What is compared is
what would be exported: the end, or the best evaluated checkpoint.

Each task, length and seed is a line of `odd.jsonl`. What is there is not run again, and further seeds get its rates.
"""

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rows import append, read

from suite.excess import summarised
from suite.odd_tasks import ODD_TASKS
from suite.run import GUESSES, REFERENCE_SCHEDULES, controlled, scheduled
from suite.tasks import Task
from trainers.workload import WorkloadError

FILE = Path(__file__).parent / "odd.jsonl"
WIDE_SCHEDULE, *_ = SCHEDULES = REFERENCE_SCHEDULES[True]
#: Half decades about 1: rates of the wide grid.
WIDE_GRID = {"sgd": range(-10, 3), "adamw": range(-9, 0)}
#: Half decades about the best of them.
GRID = range(-2, 2)

Row = dict[str, Any]


def run(names: Sequence[str], steps: Sequence[int], seeds: Sequence[int], part: Sequence[int]) -> None:
    """Run what is missing, and append the seeds of a task and length to the file together."""
    cells = [(name, length) for length in steps for name in names]
    for name, length in cells[part[0] :: part[1]]:
        known = [row for row in read(FILE) if row["task"] == name and row["steps"] == length]
        missing = sorted(set(seeds) - {row["seed"] for row in known})
        try:
            append(FILE, *_measured(ODD_TASKS[name], length, missing, known))
        except WorkloadError as error:  # its data are not on this machine
            print(f"{name}: {error}", file=sys.stderr)


def _measured(task: Task, steps: int, seeds: Sequence[int], known: Sequence[Row]) -> list[Row]:
    """Return a row for each seed, with the rates and the guess of the rows that are known."""
    if not seeds:
        return []
    rates = known[0]["rates"] if known else _rates(task, steps, seeds[0])
    grids = [
        {schedule: [_loss(task, schedule, rate, steps, seed) for rate in rates] for schedule in SCHEDULES}
        for seed in seeds
    ]
    cosines = map(sum, zip(*(grid["cosine"] for grid in grids), strict=True))
    guess = known[0]["guess"] if known else min(zip(cosines, rates, strict=True))[1]
    shared = {"task": task.name, "steps": steps, "rates": rates, "guess": guess}
    today = datetime.now(UTC).date().isoformat()
    return [
        shared | {"seed": seed, "grid": grid, "ours": _ours(replace(task, guess=guess), steps, seed), "date": today}
        for seed, grid in zip(seeds, grids, strict=True)
    ]


def _ours(task: Task, steps: int, seed: int) -> dict[str, Row]:
    """Return what the controller does from each guess."""
    return {name: controlled(task, {"kind": "bo"}, steps, seed, factor)["run"]() for name, factor in GUESSES.items()}


def _rates(task: Task, steps: int, seed: int) -> list[float]:
    """Return the rates of the grid, about the best of the wide one."""
    best = min(WIDE_GRID[task.optimizer], key=lambda each: _loss(task, WIDE_SCHEDULE, _rate(each), steps, seed))
    return [_rate(best + each) for each in GRID]


def _rate(half_decades: int) -> float:
    return float(f"{10 ** (half_decades / 2):.4g}")


@cache
def _loss(task: Task, schedule: str, rate: float, steps: int, seed: int) -> float:
    flattered: float = scheduled(task, schedule, rate, steps, seed)["run"]()["flattered"]
    return flattered


# -- the table ---------------------------------------------------------------------------------------------


def table() -> None:
    """Print how far above the reference runs end: of each optimizer and length, and of each task."""
    cells = defaultdict[tuple[str, int], list[Row]](list)
    for row in read(FILE):
        cells[row["task"], row["steps"]].append(row)
    order, lines, groups = list(ODD_TASKS), list[str](), defaultdict[tuple[str, int], list[float]](list)
    for name, steps in sorted(cells, key=lambda cell: (cell[1], order.index(cell[0]))):
        found = cells[name, steps]
        reference, arm = _reference(found)
        above = {guess: [_above(row["ours"][guess]["flattered"], reference) for row in found] for guess in GUESSES}
        groups[ODD_TASKS[name].optimizer, steps] += [each for runs in above.values() for each in runs]
        means = " | ".join(f"{100 * statistics.fmean(runs):+.1f}" for runs in above.values())
        lines.append(f"| {name} | {steps} | {reference:.4g} | {arm} | {means} |")
    print("| optimizer | steps | runs | above the reference in %: mean | median | lost |\n" + "| --- " * 6 + "|")
    for (optimizer, steps), runs in groups.items():
        mean, median, lost, num_runs = summarised(runs)
        print(f"| {optimizer} | {steps} | {num_runs} | {100 * mean:+.1f} | {100 * median:+.1f} | {lost} |")
    print("\n| task | steps | reference | its arm | " + " | ".join(GUESSES) + " |\n" + "| --- " * 7 + "|")
    print("\n".join(lines))


def _reference(found: Sequence[Row]) -> tuple[float, str]:
    """Return the lowest mean of the seeds' losses, and its schedule and rate."""
    return min(
        (statistics.fmean(row["grid"][schedule][index] for row in found), f"{schedule} {rate:.2g}")
        for schedule in SCHEDULES
        for index, rate in enumerate(found[0]["rates"])
    )


def _above(loss: float, reference: float) -> float:
    """Return the share of the reference that a loss is above it; of 1 at least where it is not above 0."""
    return (loss - reference) / (reference if reference > 0 else max(-reference, 1.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("table")
    runner = commands.add_parser("run")
    runner.add_argument("--tasks", nargs="+", choices=tuple(ODD_TASKS), default=tuple(ODD_TASKS), metavar="TASK")
    runner.add_argument("--steps", nargs="+", type=int, default=[300])
    runner.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    runner.add_argument("--part", nargs=2, type=int, default=(0, 1), metavar=("INDEX", "COUNT"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "table":
        return table()
    return run(given.tasks, given.steps, given.seeds, given.part)


if __name__ == "__main__":
    main()
