"""Optimizers that compete: each has a wide search of its own, and the run uses the one whose finalist learned most.

A contest is a wide search whose probes are of several optimizers. What one of them has of it is an *entry*: the setup
by its own guess and traits, and the stage as if its probes were all. Everything that a wide search does with one
optimizer it does with an entry. Without a contest there is one entry, of all there is.
"""

import math
from dataclasses import replace
from typing import NamedTuple

from search.bayesian.rewards import scores
from search.bayesian.setup import SearchSetup
from search.bayesian.stage import Stage
from search.bayesian.wide_optimum import shows_progress

#: A lead of less than this in the log loss says nothing of a long run: then the one that the job names first is used.
LEAST_LEAD = 0.05


class Entry(NamedTuple):
    """One optimizer's part of a search."""

    setup: SearchSetup
    stage: Stage


def entries(setup: SearchSetup, stage: Stage) -> list[Entry]:
    """Return what each optimizer has that the open search compares, in the job's order."""
    if stage.has_incumbent or not setup.contenders:
        return [Entry(setup, stage)]
    return [entry_of(setup, stage, optimizer) for optimizer in setup.contenders]


def entry_of(setup: SearchSetup, stage: Stage, optimizer: str | None) -> Entry:
    """Return what this optimizer has of the search; None: no optimizers compete."""
    own = setup.of(optimizer)
    incumbent = stage.incumbent if stage.has_incumbent else own.opening
    return Entry(own, replace(stage.of(optimizer), incumbent=incumbent))


def leader(setup: SearchSetup, stage: Stage) -> Entry:
    """Return the first entry of those whose best probe of the last rung leads, and shows progress; else the first one.

    Probes of all optimizers start from the same state, see the same batches and may spend the same, so their rewards
    compare. Those of Schedule-Free are of the iterate that it trains, which is a little behind the one it evaluates.
    """
    found = entries(setup, stage)
    if len(found) == 1:
        return found[0]
    best = best_rewards(stage.decisive)
    trained = [shows_progress(entry.stage.at(0)) or shows_progress(entry.stage.decisive) for entry in found]
    rewards = [
        best.get(entry.setup.space.optimizer, -math.inf) if has_trained else -math.inf
        for entry, has_trained in zip(found, trained, strict=True)
    ]
    return next(entry for entry, reward in zip(found, rewards, strict=True) if reward >= max(rewards) - LEAST_LEAD)


def best_rewards(stage: Stage) -> dict[str, float]:
    """Return the best reward of each optimizer with a probe in `stage` that did not diverge."""
    best = dict[str, float]()
    for score in scores(stage):
        name = score.values.optimizer or ""
        if score.reward is not None:
            best[name] = max(score.reward, best.get(name, -math.inf))
    return best
