"""Optimizers that compete: each has a wide search of its own, and the run uses the one whose finalist learned most.

A contest is a wide search whose probes are of several optimizers. What one of them has of it is an *entry*: the problem
by its own guess and traits, and the stage as if its probes were all. Everything that a wide search does with one
optimizer it does with an entry. Without a contest there is one entry, of all there is.
"""

import math
from dataclasses import replace
from typing import NamedTuple

from search.evidence import scores
from search.peak import shows_progress
from search.stage import Problem, Stage

#: A lead of less than this in the log loss says nothing of a long run: then the one that the job names first is used.
LEAST_LEAD = 0.05


class Entry(NamedTuple):
    """What one optimizer has of a search."""

    problem: Problem
    stage: Stage


def entries(problem: Problem, stage: Stage) -> list[Entry]:
    """Return what each optimizer has that the open search compares, in the job's order."""
    if stage.has_incumbent or not problem.contenders:
        return [Entry(problem, stage)]
    return [entry_of(problem, stage, optimizer) for optimizer in problem.contenders]


def entry_of(problem: Problem, stage: Stage, optimizer: str | None) -> Entry:
    """Return what this optimizer has of the search; None: no optimizers compete."""
    own = problem.of(optimizer)
    incumbent = stage.incumbent if stage.has_incumbent else own.opening
    return Entry(own, replace(stage.of(optimizer), incumbent=incumbent))


def leader(problem: Problem, stage: Stage) -> Entry:
    """Return the first entry of those whose best probe of the last rung leads, and shows progress; else the first one.

    Probes of all optimizers start from the same state, see the same batches and may spend the same, so their rewards
    compare. Those of Schedule-Free are of the iterate that it trains, which is a little behind the one it evaluates.
    """
    found = entries(problem, stage)
    if len(found) == 1:
        return found[0]
    best = best_rewards(stage.decisive)
    rewards = [
        best.get(entry.problem.space.optimizer, -math.inf) if _shows_progress(entry.stage) else -math.inf
        for entry in found
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


def _shows_progress(stage: Stage) -> bool:
    return bool(stage.probes) and (shows_progress(stage.at(0)) or shows_progress(stage.decisive))


def told(problem: Problem, stage: Stage, chosen: str | None) -> str:
    """Return how the contest ended that chose an optimizer, and which of the job's were not in it."""
    if stage.has_incumbent or not problem.space.optimizers:
        return ""
    return "; ".join(filter(None, [_compared(problem, stage, chosen or ""), _left_out(problem)]))


def _compared(problem: Problem, stage: Stage, chosen: str) -> str:
    best = best_rewards(stage.decisive) if stage.probes else {}
    others = [f"{best[name]:.3g} of {name}" for name in problem.contenders if name != chosen and name in best]
    is_behind = chosen in best and max(best.values()) > best[chosen]
    tie = f" (a lead of less than {LEAST_LEAD:g} does not count)" if is_behind else ""
    lost = [name for name in problem.contenders if name not in best]
    diverged = f"; no probe of {' and '.join(lost)} came to an end" if lost and best else ""
    if chosen not in best or not others:
        return diverged.removeprefix("; ")
    return f"{chosen} learned {best[chosen]:.3g} in its best probe, against {', '.join(others)}{tie}{diverged}"


def _left_out(problem: Problem) -> str:
    """Return which optimizers the budget has no room for, and from which one on it would."""
    names = [each.optimizer for each in problem.space.optimizers]
    first = max(1, len(problem.contenders))
    needed = [problem.config.least_budget(problem.contest_steps(number + 1)) for number in range(first, len(names))]
    return "; ".join(
        f"{name} would be tried in a budget of {steps} steps" for name, steps in zip(names[first:], needed, strict=True)
    )
