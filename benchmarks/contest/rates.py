"""The learning rates that every arm may choose from, and how it does: downhill on the grid, on one seed, unlimited."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from contest.arms import ARMS
from contest.network import Network
from contest.race import Rules, Runner, row
from contest.team import Team

Json = dict[str, Any]
GRID = (0.00125, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
#: No race has this seed.
SEED = 100

#: How good a rate was: steps to the target, and the lowest loss for those that did not get there.
Merit = tuple[float, float]


def merit(row: Json) -> Merit:
    """Return what is the lower, the better."""
    best = row["best_loss"]
    return (math.inf if row["steps"] is None else row["steps"], math.inf if best is None else best)


def next_rate(tried: Mapping[float, Merit], *, start: float, grid: Sequence[float] = GRID) -> float | None:
    """Return the rate to try next: the neighbour of the best one that is still open, the higher first; None: done."""
    if not tried:
        return start
    best = grid.index(best_rate(tried))
    neighbours = [grid[index] for index in (best + 1, best - 1) if 0 <= index < len(grid)]
    return next((rate for rate in neighbours if rate not in tried), None)


def best_rate(tried: Mapping[float, Merit]) -> float:
    return min(tried, key=tried.__getitem__)


def run_one(network: Network, team: Team, rules: Rules, name: str, rate: float) -> Json:
    """Train the arm alone at `rate`; returns its row."""
    team.begin(rate)
    runner = Runner(team, rate)
    while not runner.is_done(rules):
        runner.advance(rules)
    return row(name, runner, rules, network.num_hosts)


def started(network: Network, name: str, task: str) -> Team:
    team = Team(network, ARMS[name], task=task, seed=SEED)
    team.wait()
    return team
