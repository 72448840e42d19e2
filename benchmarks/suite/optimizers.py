"""The controller with each optimizer, none of which is told a rate, and with the one that a job would choose.

    PYTHONPATH=.:benchmarks python benchmarks/suite/optimizers.py run   [--steps 1000] [--seeds 0 1] [--tasks ...]
    PYTHONPATH=.:benchmarks python benchmarks/suite/optimizers.py table [--steps 1000] [--tasks ...]
    PYTHONPATH=.:benchmarks python benchmarks/suite/optimizers.py worth

An arm is a kind from its default guess, or `auto`, which trains that one of a job's default options whose steps are
worth most, as `optimizer: {kind: auto}` does. A run is one line of `optimizers.jsonl`, and is not run again. Losses are
of the validation set; what a job exports counts.

`worth` prints how many steps of AdamW a step of each other kind is worth, chosen with a family left out at a time
(docs/decisions/0040), and without `HELD_OUT`. It compares AdamW's runs with those of the other kind that cost as much.
"""

import argparse
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from statistics import fmean as mean
from typing import NamedTuple

import numpy as np
import torch
from equal_cost import HELD_OUT
from rows import append, read

from search.budget.link import StepCost
from search.budget.optimizer_choice import best_optimizer
from suite import excess
from suite.controlled import searched
from suite.excess import KINDS, OPTIMIZER_ROWS as ROWS, Row, above, beside_each_other, references, summarised
from suite.tasks import TASKS
from suite.training import Line
from trainers.methods.optimizer.spec import (
    AdamWConfig,
    AutoOptimizerConfig,
    MuonConfig,
    OptimizerConfig,
    ScheduleFreeAdamWConfig,
    ScheduleFreePlusConfig,
    ScheduleFreeSgdConfig,
    SgdConfig,
)

OPTIONS: tuple[OptimizerConfig, ...] = (
    SgdConfig(),
    AdamWConfig(),
    MuonConfig(),
    ScheduleFreeSgdConfig(),
    ScheduleFreeAdamWConfig(),
    ScheduleFreePlusConfig(),
)
#: Muon's rate was chosen by all of these with AdamW. `HELD_OUT` took no part in what a step is worth.
TASKS_SHOWN = tuple(name for name, task in TASKS.items() if task.group not in ("slow to begin", "other optimizers"))
GROUPS = {
    "tasks of SGD": [name for name in TASKS_SHOWN if TASKS[name].optimizer == "sgd"],
    "tasks of AdamW": [name for name in TASKS_SHOWN if TASKS[name].optimizer == "adamw"],
    "held out": HELD_OUT,
    "all": TASKS_SHOWN,
}
FAMILIES = tuple(dict.fromkeys(name.partition("-")[0] for name in TASKS_SHOWN))
ARMS = (*KINDS, "auto")
#: Steps of AdamW, and those of another kind for the price of them, if a step of it costs so many times as much.
BUDGETS, COSTS = (300, 1000), (1.0, 1.5, 2.0, 3.0)
#: A ratio of losses beyond this counts as this.
MOST_RATIO = math.exp(0.5)


def optimizer_of(arm: str, steps: int, *, weight_decay: float) -> OptimizerConfig:
    """Return what trains in `arm`, with the task's weight decay."""
    known = {each.kind: each.model_copy(update={"weight_decay": weight_decay}) for each in OPTIONS}
    alike = {each.kind: StepCost(bytes=1.0, seconds=1.0) for each in AutoOptimizerConfig().options}
    return known[best_optimizer({"steps": steps}, alike) if arm == "auto" else arm]


def run(task: str, arm: str, steps: int, seed: int) -> Row:
    """Train `task` with the controller; returns the row."""
    optimizer = optimizer_of(arm, steps, weight_decay=TASKS[task].weight_decay)
    line, started = Line(TASKS[task], seed).with_optimizer(optimizer), time.monotonic()
    done = searched(line, optimizer.learning_rate, steps, seed)
    first = done.decisions[0]
    return {
        "task": task,
        "arm": arm,
        "steps": steps,
        "seed": seed,
        "loss": line.evaluate(),
        "exported": done.exported,
        "flattered": done.flattered,
        "chosen": optimizer.kind,
        "rate": first.values.learning_rate,
        "searched": done.searched,
        "reason": first.reason,
        "seconds": round(time.monotonic() - started, 1),
        "date": datetime.now(UTC).date().isoformat(),
    }


def run_all(tasks: Sequence[str], arms: Sequence[str], steps: int, seeds: Sequence[int]) -> None:
    """Run what is missing, and append each result to the file at once."""
    done = {(row["task"], row["arm"], row["steps"], row["seed"]) for row in read(ROWS)}
    for task in tasks:
        for arm in arms:
            for seed in seeds:
                if (task, arm, steps, seed) not in done:
                    row = run(task, arm, steps, seed)
                    append(ROWS, row)


def table(steps: int) -> None:
    """Print how far each arm ends above the uncharged grid, in %, in the runs that all arms have."""
    reference, known = references(read(excess.ROWS), steps), defaultdict[str, dict[tuple[str, int], float]](dict)
    for row in read(ROWS):
        if row["steps"] == steps and row["task"] in reference:
            known[row["arm"]][row["task"], row["seed"]] = above(row["flattered"], reference[row["task"]])
    arms = [arm for arm in ARMS if arm in known]
    cells = set.intersection(*(set(known[arm]) for arm in arms))
    print(f"| {steps} steps, {len(cells)} runs | " + " | ".join(arms) + " |\n| --- |" + " --- |" * len(arms))
    for name, tasks in GROUPS.items():
        inside = [cell for cell in sorted(cells) if cell[0] in tasks]
        ends = (summarised(known[arm][cell] for cell in inside) for arm in arms)
        told = (f"{100 * each.mean:+.1f}, {100 * each.median:+.1f}, {each.lost}" for each in ends)
        print(f"| {name}, {len(inside)}: mean, median, lost | {' | '.join(told)} |")


def worth() -> None:
    """Print what a step of each kind is worth, in steps of AdamW, and with each further family of tasks left out."""
    losses = {(row["arm"], row["task"], row["steps"], row["seed"]): row["flattered"] for row in read(ROWS)}
    print("| | worth | with a family left out | a dearer step costs: mean |\n| --- | --- | --- | --- |")
    for kind in ("muon", "sgd", "schedulefree_sgd", "schedulefree_adamw", "schedulefree_plus"):
        if found := list(_ratios(losses, kind)):
            left_out = [_worth(kind, [ratio for ratio in found if ratio.family != family]) for family in FAMILIES]
            means = ", ".join(
                f"{cost:g}: {mean(ratio.log for ratio in found if ratio.cost == cost):+.3f}" for cost in COSTS
            )
            print(f"| `{kind}` | {_worth(kind, found):.2f} | {min(left_out):.2f} to {max(left_out):.2f} | {means} |")


class Ratio(NamedTuple):
    """The logarithm of the ratio of two losses at one price: with the dearer kind, and with the other."""

    family: str
    budget: int
    cost: float  # of a step of the former, in steps of the latter
    log: float


def _ratios(losses: dict[tuple[str, str, int, int], float], kind: str) -> Iterator[Ratio]:
    """Yield the ratios of `kind`; of one that is worth less than AdamW it is AdamW whose steps cost more."""
    dearer = _dearer(kind)
    for (arm, task, budget, seed), loss in losses.items():
        if arm == (kind if dearer == "adamw" else "adamw") and budget in BUDGETS and task not in HELD_OUT:
            for cost in COSTS:
                other = losses.get((dearer, task, round(budget / cost), seed))
                if other is not None:
                    log = math.log(min(max(other / loss, 1 / MOST_RATIO), MOST_RATIO))
                    yield Ratio(task.partition("-")[0], budget, cost, log)


def _dearer(kind: str) -> str:
    """Return whose steps are worth more: of this kind and AdamW."""
    return kind if kind == "muon" else "adamw"


def _worth(kind: str, ratios: Sequence[Ratio]) -> float:
    """Return the cost at which both kinds end alike on the mean, interpolated on a logarithmic scale."""
    costs = sorted({ratio.cost for ratio in ratios})
    budgets = sorted({ratio.budget for ratio in ratios})
    means = [mean(mean(r.log for r in ratios if (r.budget, r.cost) == (n, c)) for n in budgets) for c in costs]
    cost = float(np.exp(np.interp(0.0, means, np.log(costs))))
    return cost if _dearer(kind) == kind else 1 / cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "table", "worth"))
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=TASKS_SHOWN)
    parser.add_argument("--arms", nargs="+", default=ARMS)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1))
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "table":
        table(given.steps)
        found = beside_each_other(read(ROWS), given.steps)
        told = ", ".join(f"{kind} {100 * share:+.0f} %" for kind, share in found.items())
        print(f"\nAbove the lowest loss of the task, on the mean: {told}")
    elif given.what == "worth":
        worth()
    else:
        run_all(given.tasks, given.arms, given.steps, given.seeds)


if __name__ == "__main__":
    main()
