"""The learning rates that every arm may choose from, and how it does, on a network without a limit.

Downhill on the grid with the first seed; then the rates that came close are tried with two more.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from races.arms import ARMS
from races.cables import Cables
from races.race import Rules, Runner, row
from races.team import Team

Json = dict[str, Any]
GRID = (0.00125, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
#: No race has these seeds.
SEEDS = (100, 101, 102)
#: A rate that takes up to so many times the best one's steps with the first seed may be the better one with others.
CLOSE = 1.5

#: How good a rate was with a seed: steps to the target, and the lowest loss for those that did not get there.
Merit = tuple[float, float]
#: By rate, then by seed.
Tried = dict[float, dict[int, Merit]]


def merit(row: Json) -> Merit:
    """Return what is the lower, the better."""
    best = row["best_loss"]
    return (math.inf if row["steps"] is None else row["steps"], math.inf if best is None else best)


def next_rate(tried: Tried, seed: int, *, start: float, grid: Sequence[float] = GRID) -> float | None:
    """Return the rate to try next with `seed`, of which the first one finds the contenders; None: done."""
    if seed == SEEDS[0]:
        return next_downhill({rate: merits[seed] for rate, merits in tried.items()}, start=start, grid=grid)
    return next((rate for rate in contenders(tried) if seed not in tried[rate]), None)


def next_downhill(tried: Mapping[float, Merit], *, start: float, grid: Sequence[float]) -> float | None:
    """Return the neighbour of the best rate that is still open, the higher first."""
    if not tried:
        return start
    best = grid.index(min(tried, key=tried.__getitem__))
    neighbours = [grid[index] for index in (best + 1, best - 1) if 0 <= index < len(grid)]
    return next((rate for rate in neighbours if rate not in tried), None)


def contenders(tried: Tried) -> list[float]:
    """Return the rates that are tried with all seeds: none where there is but one, or where none reaches the loss."""
    steps = {rate: merits[SEEDS[0]][0] for rate, merits in tried.items()}
    close = [rate for rate in steps if steps[rate] <= CLOSE * min(steps.values()) < math.inf]
    return close if len(close) > 1 else []


def best_rate(tried: Tried) -> float:
    """Return the rate that misses the target with the fewest seeds; of several, the one with the fewest steps."""

    def worth(rate: float) -> tuple[int, float, float]:
        merits = tried[rate].values()
        reached = [steps for steps, _ in merits if steps < math.inf]
        return (len(merits) - len(reached), fmean(reached or [math.inf]), fmean(loss for _, loss in merits))

    first = {rate: merits[SEEDS[0]] for rate, merits in tried.items()}
    return min(contenders(tried) or [min(first, key=first.__getitem__)], key=worth)


def run_one(network: Cables, team: Team, rules: Rules, name: str, rate: float) -> Json:
    """Train the arm alone at `rate`; returns its row."""
    team.begin(rate)
    runner = Runner(team, rate)
    while not runner.is_done(rules):
        runner.advance(rules)
    return row(name, runner, rules, network.num_hosts)


def started(network: Cables, name: str, task: str, seed: int) -> Team:
    team = Team(network, ARMS[name], task=task, seed=seed)
    team.wait()
    return team
