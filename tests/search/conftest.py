"""A simulated training run: losses that depend on the learning rate, levels that change what a step costs."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest

from search.budget import spending
from search.budget.link import StepCost
from search.config import Budget
from search.loop import endings, pacing
from search.protocol import Strategy
from search.trace import Trace
from search.types import Allowance, Candidate, Course, Decision, Observation, Spent, Values


@dataclass
class SimulatedRun:
    """Noisy quadratic loss: it decays at the rate lr / best, and blows up above 10 x best.

    The noise of a step depends on the step alone, so probes from one snapshot are paired.
    """

    budget: Budget
    best: float = 0.1
    noise: float = 0.02
    seconds_per_step: Callable[[Values], float] = lambda values: 0.01
    bytes_per_step: Callable[[Values], int] = lambda values: 1000
    spent: Spent = field(default_factory=Spent)
    cost: StepCost | None = None  # of the last step
    excess: float = 2.0  # above the loss that no training removes
    step: int = 0
    history: list[tuple[Candidate, Observation]] = field(default_factory=list)
    every: int = 50  # committed steps between two looks at the line
    scale_at: Callable[[int], float] = lambda step: 1.0  # the gradient's scale at a step of a commit
    decisions: list[Decision] = field(default_factory=list)
    commits: list[Observation] = field(default_factory=list)
    searched: Spent = field(default_factory=Spent)

    def train(self, strategy: Strategy) -> "SimulatedRun":
        """Train to the end of the budget, as a trial does."""
        while not self.is_over():
            self.run_stage(strategy)
        return self

    def run_stage(self, strategy: Strategy) -> Decision:
        self.search(strategy)
        return self.commit(strategy)

    def search(self, strategy: Strategy) -> None:
        before = self.spent
        while (candidate := strategy.ask()) is not None:
            observation = self.probe(candidate, strategy)
            self.history.append((candidate, observation))
            strategy.tell(observation)
        self.searched = spending.plus(self.searched, spending.minus(self.spent, before))

    def commit(self, strategy: Strategy) -> Decision:
        decision, snapshot = strategy.decide(), (self.excess, self.step)
        self.decisions.append(decision)
        course: Course = "go_on"
        trace = Trace()
        while course == "go_on" and not self.is_reached(decision.commit_until):
            done, most = self.spent.seconds, self.every - self.step % self.every
            losses, _ = self.steps(lambda: strategy.values(self.spent), until=decision.commit_until, most=most)
            seconds = [(self.spent.seconds - done) / len(losses)] * len(losses)
            scales = [self.scale_at(trace.num_steps + index) for index in range(len(losses))]
            trace = trace.extended(losses, seconds, scales)
            told = self.observation(None, losses, decision.values, trace=trace)
            if told.diverged:
                course = "roll_back"
            elif self.step % self.every == 0:
                course = strategy.watch(told)
        if course == "go_on":
            course = strategy.watch(told)  # once more, at its end
        if course == "roll_back":
            self.excess, self.step = snapshot
        self.commits.append(told.model_copy(update={"rolled_back": course == "roll_back"}))
        strategy.tell(self.commits[-1])
        return decision

    def probe(self, candidate: Candidate, strategy: Strategy) -> Observation:
        snapshot, opened = (self.excess, self.step), self.spent
        losses: list[float] = []
        for part in pacing.probe_parts(candidate.allowance, opened, self.budget):
            more, diverged = self.steps(
                lambda: pacing.probe_values(candidate, spending.minus(self.spent, opened), self.cost, 0),
                until=part.until,
                at_least=part.least - len(losses),
            )
            losses += more
            seen = self.observation(candidate.id, losses, candidate.values, diverged=diverged)
            is_cut = endings.is_cut(seen, strategy.watch, part)
            if diverged or is_cut:
                break
        self.excess, self.step = snapshot
        return seen.model_copy(update={"is_cut": is_cut})

    def observation(
        self,
        candidate_id: str | None,
        losses: list[float],
        values: Values,
        *,
        diverged: bool = False,
        trace: Trace | None = None,
    ) -> Observation:
        return Observation(
            candidate_id=candidate_id,
            losses=tuple(losses),
            step_seconds=(self.seconds_per_step(values),) * len(losses),
            trace=trace,
            bytes_sent=self.bytes_per_step(values) * (trace.num_steps if trace else len(losses)),
            diverged=diverged or not all(map(math.isfinite, losses)),
            spent=self.spent,
        )

    def steps(
        self, values: Callable[[], Values], *, until: Allowance, at_least: int = 0, most: int = 10**9
    ) -> tuple[list[float], bool]:
        losses: list[float] = []
        ends = pacing.within(until, self.budget)
        while len(losses) < most and (len(losses) < at_least or not pacing.is_reached(ends, self.spent, self.cost)):
            now = values()
            losses.append(self.loss_of(now))
            if not losses[-1] < 100:
                return losses, True
        return losses, False

    def loss_of(self, values: Values) -> float:
        loss = 0.3 + self.excess * math.exp(self.noise * _shock(self.step))
        ratio = values.learning_rate / self.best
        # steepest descent at `best`, unstable from 4 x best on
        self.excess *= 1 - 0.02 * ratio * (1 - ratio / 4) * 4 / 3
        self.step += 1
        self.cost = StepCost(bytes=self.bytes_per_step(values), seconds=self.seconds_per_step(values))
        self.spent = pacing.after(1, self.spent, self.cost)
        return loss

    def is_over(self) -> bool:
        return self.is_reached(Allowance())

    def is_reached(self, until: Allowance) -> bool:
        """Return whether another step would exceed these totals, or the budget."""
        return pacing.is_reached(pacing.within(until, self.budget), self.spent, self.cost)


@cache  # all runs and their probes ask for the same few thousand
def _shock(step: int) -> float:
    return float(np.random.default_rng(step).standard_normal())


@pytest.fixture(scope="session")
def simulated_run() -> type[SimulatedRun]:
    return SimulatedRun
