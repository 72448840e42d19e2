"""Chooses where on the plateau of coarse probes a run is placed, leaving out one family at a time.

    PYTHONPATH=benchmarks python benchmarks/suite/constants.py collect [--seeds 0 1 2] [--tasks ...]
    PYTHONPATH=benchmarks python benchmarks/suite/constants.py choose

`collect` trains each task at rates a quarter of a decade apart: as coarse probes, and as runs of 300 steps with the
controller's ramp and decay. Results are lines of `constants.jsonl`; what is in it is not run again. `choose` lets the
controller search on the recorded probes, from nine guesses, and looks its pick up in the recorded runs of 300 steps and
in the grid of 1,000 steps (`rows.jsonl`). It prints which value is best for all families but one, and how far above the
best rate that one ends with it: first of the factor `pick`, by itself, then of the `usual` rate: AdamW's with the pick
that the controller has, SGD's by the sharpness alone. Nothing is charged here: it is about the rate alone.
"""

import argparse
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rows import append, read

from search import strategies
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import Ramp
from search.bayesian.usual_rate import LOSS_POWER, SHARPNESS_POWER, expected_rate
from search.config import BoConfig, Budget
from search.optimizer_traits import OPTIMIZER_TRAITS, OptimizerTraits
from search.space import SearchSpace, Weights
from search.types import Candidate, Observation, Spent, Values
from suite.excess import ROWS
from suite.tasks import DEEP, TASKS, Task
from suite.training import SCHEDULES, Line

FILE = Path(__file__).parent / "constants.jsonl"
#: Quarters of a decade about a task's own rate: of probes, and of runs.
PROBED, TRAINED = range(-16, 9), range(-7, 6)
PROBE_STEPS, RUN_STEPS = 10, 300
OPTIMIZERS = ("sgd", "adamw")
#: Of SGD in all tasks.
MOMENTUM = 0.9
#: Tasks that constants are chosen by.
CHOSEN_BY = ("", DEEP)
#: Decades by which guesses are off: with whole ones alone, all searches of a task would see the same rates.
OFF = np.arange(-1.0, 1.01, 0.25)
#: What may be chosen, in decades: how far above the middle of the plateau a run is, and what rate is usual, of weights
#: of scale 1 or a loss and a sharpness of 1.
PICKS, USUAL = np.arange(-1.0, 0.51, 0.05), np.arange(-1.2, 0.41, 0.05)
#: Of a value counts the mean with its neighbours': a cliff may lie just above the best one.
NEIGHBOURS = np.full(3, 1 / 3)
#: One run that is lost counts as this log of a loss's ratio, lest it decide alone.
WORST = 0.5
Curve = tuple[int, np.ndarray, np.ndarray]  # steps, log10 of rates, by how much the log of the loss lies above the best


def collect(tasks: Sequence[str], seeds: Sequence[int]) -> None:
    done = {(row["task"], row["seed"]) for row in recorded()}
    for task, seed in ((task, seed) for seed in seeds for task in tasks if (task, seed) not in done):
        line, guess = Line(TASKS[task], seed), TASKS[task].guess
        start = line.snapshot()
        probes, runs = dict[int, list[float]](), dict[int, float]()
        for quarter in PROBED:
            line.restore(start)
            probes[quarter] = line.train([guess * 10 ** (quarter / 4)] * PROBE_STEPS)
        for quarter in TRAINED:
            line.restore(start)
            rate = guess * 10 ** (quarter / 4)
            ramp = Ramp(_setup(TASKS[task], guess, line.weights).ramp_steps(RUN_STEPS))
            losses = line.train(
                [rate * ramp.factor(step) * SCHEDULES["half"](step / RUN_STEPS) for step in range(RUN_STEPS)]
            )
            runs[quarter] = line.evaluate() if len(losses) == RUN_STEPS else math.inf
        append(FILE, {"task": task, "seed": seed, "probes": probes, "runs": runs})


@cache
def recorded() -> list[dict[str, Any]]:
    return read(FILE)


def _setup(task: Task, guess: float, weights: Weights | None = None) -> SearchSetup:
    space = SearchSpace(
        optimizer=task.optimizer, batch_size=task.batch_size, guess=Values(learning_rate=guess), weights=weights
    )
    return SearchSetup(space, BoConfig(), Budget(steps=RUN_STEPS), seed=0)


@cache
def root_scale(task: str) -> float:
    """Return what the usual rate is proportional to: the scale of the weights over the root of their number."""
    weights = Line(TASKS[task], 0).weights
    return weights.scale / math.sqrt(weights.num_matrices) if weights else math.nan


@cache
def slope(task: str, seed: int) -> float:
    """Return by what the usual rate of SGD is lower on the task's new model: powers of its sharpness and its loss."""
    found = Line(TASKS[task], seed).landscape()
    return found["sharpness"] ** SHARPNESS_POWER * found["first_loss"] ** LOSS_POWER if found else math.nan


def middle(row: dict[str, Any], factor: float) -> float:
    """Return the middle of the plateau by recorded probes, from the task's own rate x `factor`; or the guess, kept."""
    task = TASKS[row["task"]]
    traits = OPTIMIZER_TRAITS[task.optimizer]
    OPTIMIZER_TRAITS[task.optimizer] = OptimizerTraits(**traits.model_dump() | {"pick": 1.0, "usual": None})
    try:
        setup = _setup(task, task.guess * factor)
        strategy = strategies.build(setup.config, space=setup.space, seed=setup.seed, budget=setup.budget)
        while (candidate := strategy.ask()) is not None and not candidate.rung:
            strategy.tell(_told(row, candidate, task.guess))
        return setup.space.guess.learning_rate if candidate else strategy.decide().values.learning_rate
    finally:
        OPTIMIZER_TRAITS[task.optimizer] = traits


def _told(row: dict[str, Any], candidate: Candidate, guess: float) -> Observation:
    quarter = round(4 * math.log10(candidate.values.learning_rate / guess))
    length = candidate.allowance.steps or 0
    losses = row["probes"].get(str(quarter), [row["probes"]["0"][0], math.nan])[:length]
    return Observation(
        candidate_id=candidate.id,
        losses=tuple(losses),
        step_seconds=(),
        bytes_sent=0,
        diverged=len(losses) < length or not math.isfinite(losses[-1]),
        spent=Spent(),
    )


def curves() -> dict[str, list[Curve]]:
    """Return how the loss depends on the rate, by task: after 300 steps, and after 1,000 where the grid was run."""
    losses: dict[tuple[str, int], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in recorded():
        for quarter, loss in row["runs"].items():
            rate = TASKS[row["task"]].guess * 10 ** (int(quarter) / 4)
            losses[row["task"], RUN_STEPS][round(math.log10(rate), 3)].append(loss)
    for row in read(ROWS):
        if row["what"] == "grid" and row["arm"] == "linear" and row["steps"] == 1000 and not TASKS[row["task"]].added:
            losses[row["task"], 1000][round(math.log10(row["rate"]), 3)].append(row["loss"])
    found = defaultdict(list)
    for (task, steps), by_rate in losses.items():
        rates = np.array(sorted(by_rate))
        logs = np.array([statistics.fmean(math.log(min(loss, 1e9)) for loss in by_rate[rate]) for rate in rates])
        found[task].append((steps, rates, logs - logs.min()))
    return found


class Search(NamedTuple):
    """A search on recorded probes: its task, and the middle of the plateau that it found, in decades."""

    task: Task
    seed: int
    middle: float

    def asked(self, decades: float) -> float:
        return self.middle + decades

    def drawn(self, usual: float) -> float:
        asked = OPTIMIZER_TRAITS[self.task.optimizer].pick * 10**self.middle
        return math.log10(expected_rate(asked, 10**usual * root_scale(self.task.name)))

    def told(self, usual: float) -> float:
        momentum = OPTIMIZER_TRAITS["sgd"].momentum_power * math.log10(1 - MOMENTUM)
        return usual + momentum - math.log10(slope(self.task.name, self.seed))


def choose() -> None:
    searches = [
        Search(TASKS[row["task"]], row["seed"], math.log10(middle(row, 10**decades)))
        for row in recorded()
        for decades in OFF
    ]
    for optimizer in OPTIMIZERS:
        own = [search for search in searches if search.task.optimizer == optimizer]
        _choose(f"{optimizer}, `pick`", own, PICKS, Search.asked)
        _choose(f"{optimizer}, `usual`", own, USUAL, Search.told if optimizer == "sgd" else Search.drawn)


def _choose(
    title: str, searches: Sequence[Search], values: np.ndarray, rate_of: Callable[[Search, float], float]
) -> None:
    """Print what is chosen for each family by all others, and how it does on the family: after 300 and 1,000 steps."""
    known = curves()
    costs = [
        _costs(search.task, known[search.task.name], np.array([rate_of(search, value) for value in values]))
        for search in searches
    ]
    print(f"\n{title}\n\n| left out | value | excess of the one left out: mean, median |\n" + "| --- " * 3 + "|")
    left_out = list[np.ndarray]()
    for family in sorted({search.task.family for search in searches}):
        is_own = [search.task.family == family for search in searches]
        others = [cost.mean(axis=0) for cost, own in zip(costs, is_own, strict=True) if not own]
        best = 1 + int(np.convolve(np.mean(others, axis=0), NEIGHBOURS, "valid").argmin())
        own_costs = [cost[:, best] for cost, own in zip(costs, is_own, strict=True) if own]
        left_out += own_costs
        print(f"| {family} | {10 ** values[best]:.3g} | {_percent(np.concatenate(own_costs).tolist())} |")
    print(f"| all | | {_percent(np.concatenate(left_out).tolist())} |")


def _costs(task: Task, by_length: Sequence[Curve], rates: np.ndarray) -> np.ndarray:
    """Return by how much the log loss at each of `rates` lies above the best one, `(lengths, rates)`."""
    power = OPTIMIZER_TRAITS[task.optimizer].length_power
    return np.array(
        [
            np.minimum(np.interp(rates - power * math.log10(steps / RUN_STEPS), at, logs), WORST)
            for steps, at, logs in by_length
        ]
    )


def _percent(excess: Sequence[float]) -> str:
    return f"{100 * statistics.fmean(excess):+.1f} %, {100 * statistics.median(excess):+.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("collect", "choose"))
    plain = [name for name, task in TASKS.items() if task.optimizer in OPTIMIZERS and task.added in CHOSEN_BY]
    parser.add_argument("--tasks", nargs="+", choices=plain, default=plain)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    given = parser.parse_args()
    torch.set_num_threads(1)
    collect(given.tasks, given.seeds) if given.what == "collect" else choose()


if __name__ == "__main__":
    main()
