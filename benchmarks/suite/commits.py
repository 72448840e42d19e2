"""Chooses by how much commits end lower than their curves lead to at a constant rate, leaving out a family at a time.

    PYTHONPATH=benchmarks python benchmarks/suite/commits.py record [--steps 300 1000 2400] [--seeds 1] [--tasks ...]
    PYTHONPATH=benchmarks python benchmarks/suite/commits.py choose

`record` trains tasks as a job does, and appends to `commits.jsonl` what was forecast of each commit at a constant rate,
and the loss that it ended with; what is there is not run again. `choose` finds `search.bayesian.reports`'s constants:
the falls by the least absolute error of the log of the loss, the spread so that `COVERED` of the commits lie within two
standard deviations. It prints how the forecasts of the family that was left out then did, before and after.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rows import append, read
from scipy.optimize import minimize

from search.bayesian import reports
from search.curves.calibration import calibration
from search.types import Forecast
from suite.controlled import searched
from suite.tasks import TASKS
from suite.training import Line

FILE = Path(__file__).parent / "commits.jsonl"
GUESSES = (1.0, 10.0)
COVERED = 0.92
Array = NDArray[np.float64]


class Constants(NamedTuple):
    """As `search.bayesian.reports` has them."""

    further: float
    decay_fall: float
    decay_std: float = 0.0


class Commits(NamedTuple):
    """Forecasts at a constant rate `(n,)`, how far they reach, the share of the rate that is decayed, the outcomes."""

    mean: Array
    std: Array
    ratio: Array
    decay: Array
    ended: Array

    def z_scores(self, by: Constants) -> Array:
        mean = self.mean * np.exp(-by.further * np.log(self.ratio) - by.decay_fall * self.decay)
        return (self.ended - mean) / np.hypot(self.std, by.decay_std * self.decay * mean)

    def log_errors(self, by: Constants) -> Array:
        fall = by.further * np.log(self.ratio) + by.decay_fall * self.decay
        return np.log(np.maximum(self.ended, 1e-6) / np.maximum(self.mean, 1e-9)) + fall

    def where(self, chosen: NDArray[np.bool_]) -> "Commits":
        return Commits(*(column[chosen] for column in self))


def record(tasks: Sequence[str], steps: Sequence[int], seeds: Sequence[int]) -> None:
    done = {(row["task"], row["steps"], row["seed"], row["guess"]) for row in read(FILE)}
    cells = [(task, length, seed, guess) for length in steps for seed in seeds for guess in GUESSES for task in tasks]
    for task, length, seed, guess in (cell for cell in cells if cell not in done):
        row = {"task": task, "steps": length, "seed": seed, "guess": guess}
        row["commits"] = [[float(f"{each:.5g}") for each in commit] for commit in commits_of(task, length, seed, guess)]
        append(FILE, row)


def commits_of(task: str, num_steps: int, seed: int, guess: float) -> list[tuple[float, ...]]:
    """Train once; return mean, standard deviation, ratio, decay and outcome of each forecast at a constant rate."""
    definition, reach = TASKS[task], dict[tuple[float, float], tuple[float, float]]()
    in_use = reports.of_commit

    def noting(found: Forecast, *, ratio: float, decay: float) -> Forecast:
        reach[found.mean, found.std] = ratio, decay
        return found

    reports.of_commit = noting
    try:
        outcomes = searched(Line(definition, seed), guess * definition.guess, num_steps, seed).outcomes
    finally:
        reports.of_commit = in_use
    return [
        (found.mean, found.std, *reach[found.mean, found.std], ended)
        for found, ended in outcomes
        if found.status != "diverged" and found.std > 0
    ]


def choose() -> None:
    """Print the constants without each family, and how forecasts of what was left out did."""
    rows = [(row, commit) for row in read(FILE) for commit in row["commits"]]
    commits = Commits(*np.array([commit for _, commit in rows]).T)
    family = np.array([TASKS[row["task"]].family for row, _ in rows])
    steps = np.array([row["steps"] for row, _ in rows])
    after = np.zeros(len(rows))
    for left_out in sorted(set(family)):
        by = constants(commits.where(family != left_out))
        after[family == left_out] = commits.where(family == left_out).z_scores(by)
        print(f"without {left_out}: {by.further:.3f}, {by.decay_fall:.3f}, {by.decay_std:.2f}")
    print("all: {:.3f}, {:.3f}, {:.2f}".format(*constants(commits)))
    before, ends = commits.z_scores(Constants(0.0, 0.0)), commits.decay > 0.99
    groups = {f"{length} steps": steps == length for length in sorted(set(steps))}
    groups |= {"all": steps > 0, "first": commits.ratio > 3.5, "last": ends}
    for name, chosen in groups.items():
        print(f"{name}: {_told(before[chosen])}; with constants of the other families {_told(after[chosen])}")


def constants(of: Commits) -> Constants:
    def error(falls: Array) -> float:
        return float(np.abs(of.log_errors(Constants(*falls))).mean())

    falls = minimize(error, [0.1, 0.1], method="Nelder-Mead").x
    decayed = of.where(of.decay >= 0.5)
    for std in np.arange(0.0, 1.0, 0.01):
        if np.mean(np.abs(decayed.z_scores(Constants(*falls, std))) <= 2) >= COVERED:
            break
    return Constants(*falls, float(std))


def _told(z_scores: Array) -> str:
    found = calibration(z_scores)
    return (
        f"{found.within_1_std:.0%} and {found.within_2_std:.0%} of {found.num_outcomes} within 1 and 2 standard "
        f"deviations, on average {found.mean_z:+.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "choose"])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--steps", nargs="+", type=int, default=[300, 1000, 2400])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    given = parser.parse_args()
    if given.what == "record":
        record(given.tasks, given.steps, given.seeds)
    else:
        choose()


if __name__ == "__main__":
    main()
