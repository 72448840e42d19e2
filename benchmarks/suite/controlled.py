"""A strategy drives a line: probes from the stage's start, commits that stay, each step charged to the budget."""

import math
from dataclasses import dataclass, field
from typing import Any

from search.curves.curve_summary import end_loss
from search.protocol import Strategy
from search.trace import Trace
from search.types import Candidate, Decision, Forecast, Observation, Spent
from suite.training import EVERY, Best, Line

#: How many times a commit is looked at over the whole budget.
LOOKS = 50


@dataclass
class Run:
    """The course of a run. Mutable while it goes on."""

    num_steps: int
    spent: int = 0
    searched: int = 0
    taken_back: int = 0
    best: Best = field(default_factory=Best)
    decisions: list[Decision] = field(default_factory=list)
    probes: list[tuple[Candidate, list[float]]] = field(default_factory=list)
    outcomes: list[tuple[Forecast, float]] = field(default_factory=list)  # of commits, and the losses they ended with


def train(line: Line, strategy: Strategy, num_steps: int) -> Run:
    """Train `line` for `num_steps` steps, of probes and commits together, as `strategy` says.

    As a job does, it exports the best evaluated checkpoint where that is better than the end.
    """
    run = Run(num_steps)
    while run.spent < num_steps:
        start, ends = line.snapshot(), dict[str, Any]()
        while (candidate := strategy.ask()) is not None:
            strategy.tell(_probe(line, strategy, candidate, run))
            ends[candidate.id] = line.snapshot()
            line.restore(start)
        decision = strategy.decide(ends)
        run.decisions.append(decision)
        if decision.promoted is not None:
            line.restore(ends[decision.promoted])
        _commit(line, strategy, decision, start, run)
    run.best.loss = min(run.best.loss, line.evaluate())
    return run


def _probe(line: Line, strategy: Strategy, candidate: Candidate, run: Run) -> Observation:
    allowance, losses = candidate.allowance, list[float]()
    length = max(allowance.steps or 0, allowance.min_steps)
    for look in range(1, 5):
        until = math.ceil(length * look / 4)
        more = line.train([candidate.learning_rate_at(step / length) for step in range(len(losses), until)])
        run.spent, run.searched = run.spent + len(more), run.searched + len(more)
        losses += more
        seen = _observation(candidate.id, losses, run, diverged=not math.isfinite(losses[-1]))
        is_cut = look < 4 and not seen.diverged and strategy.watch(seen) != "go_on"
        if seen.diverged or is_cut:
            break
    run.probes.append((candidate, losses))
    return seen.model_copy(update={"is_cut": is_cut})


def _commit(line: Line, strategy: Strategy, decision: Decision, start: Any, run: Run) -> None:
    until, trace, course = decision.commit_until.steps or 0, Trace(), "go_on"
    began, losses = run.spent, list[float]()
    while course == "go_on" and run.spent < min(until, run.num_steps):
        chunk = min(max(10, run.num_steps // LOOKS), min(until, run.num_steps) - run.spent, EVERY - line.step % EVERY)
        rates = [strategy.values(Spent(steps=run.spent + step)).learning_rate for step in range(chunk)]
        scales, alignments = list[float](), list[float]()
        more = line.train(rates, scales=scales, alignments=alignments)
        run.spent += len(more)
        losses += more
        trace = trace.extended(more, [0.01] * len(more), scales, alignments)
        told = _observation(None, losses, run, diverged=not math.isfinite(losses[-1]), trace=trace)
        if line.step % EVERY == 0:
            run.best.look(line.evaluate(), run.spent / run.num_steps)
        course = "roll_back" if told.diverged else strategy.watch(told)
    if course == "roll_back":
        line.restore(start)
        run.taken_back += run.spent - began
    ended = told.model_copy(update={"rolled_back": course == "roll_back"})
    loss = end_loss(ended)
    if decision.forecast is not None and loss is not None:
        run.outcomes.append((decision.forecast, loss))
    strategy.tell(ended)


def _observation(
    candidate_id: str | None, losses: list[float], run: Run, *, diverged: bool, trace: Trace | None = None
) -> Observation:
    return Observation(
        candidate_id=candidate_id,
        losses=tuple(losses),
        step_seconds=(),
        trace=trace,
        bytes_sent=0,
        diverged=diverged,
        spent=Spent(steps=run.spent),
    )
