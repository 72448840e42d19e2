"""A simulated training run: losses that depend on the learning rate, levels that change what a step costs."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from search.config import Budget
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
    cost: Spent = field(default_factory=Spent)  # of the last step
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
        self.searched = Spent(
            steps=self.searched.steps + self.spent.steps - before.steps,
            bytes=self.searched.bytes + self.spent.bytes - before.bytes,
            seconds=self.searched.seconds + self.spent.seconds - before.seconds,
        )

    def commit(self, strategy: Strategy) -> Decision:
        decision, snapshot = strategy.decide(), (self.excess, self.step)
        self.decisions.append(decision)
        course: Course = "go_on"
        trace = Trace()
        while course == "go_on" and not (self.is_over() or _is_reached(decision.commit_until, self.spent, self.cost)):
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
        for part in (0.25, 0.5, 0.75, 1.0):
            until, least = _part_of(candidate.allowance, part, opened)
            more, diverged = self.steps(
                lambda: _values(candidate, opened, self.spent), until=until, at_least=least - len(losses)
            )
            losses += more
            seen = self.observation(candidate.id, losses, candidate.values, diverged=diverged)
            is_cut = part < 1 and not diverged and strategy.watch(seen) != "go_on"
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
        whole = Allowance(steps=self.budget.steps, bytes=self.budget.bytes, seconds=self.budget.seconds)
        while len(losses) < most and (
            len(losses) < at_least or not any(_is_reached(each, self.spent, self.cost) for each in (until, whole))
        ):
            now = values()
            losses.append(self.loss_of(now))
            if not losses[-1] < 100:
                return losses, True
        return losses, False

    def loss_of(self, values: Values) -> float:
        shock = float(np.random.default_rng(self.step).normal(0, self.noise))
        loss = 0.3 + self.excess * math.exp(shock)
        ratio = values.learning_rate / self.best
        # steepest descent at `best`, unstable from 4 x best on
        self.excess *= 1 - 0.02 * ratio * (1 - ratio / 4) * 4 / 3
        self.step += 1
        self.cost = Spent(steps=1, bytes=self.bytes_per_step(values), seconds=self.seconds_per_step(values))
        self.spent = Spent(
            steps=self.spent.steps + 1,
            bytes=self.spent.bytes + self.cost.bytes,
            seconds=self.spent.seconds + self.cost.seconds,
        )
        return loss

    def is_over(self) -> bool:
        budget = self.budget
        whole = Allowance(steps=budget.steps, bytes=budget.bytes, seconds=budget.seconds)
        return _is_reached(whole, self.spent, self.cost)


def _values(candidate: Candidate, opened: Spent, spent: Spent) -> Values:
    """Return what the probe's next step uses: of a finalist, the rate falls as a run's does."""
    allowed = candidate.allowance
    caps = [
        (getattr(allowed, unit), getattr(spent, unit) - getattr(opened, unit)) for unit in ("steps", "bytes", "seconds")
    ]
    part = min(1.0, max(own / cap for cap, own in caps if cap), (spent.steps - opened.steps) / allowed.min_steps)
    return candidate.values.model_copy(update={"learning_rate": candidate.learning_rate_at(part)})


def _part_of(allowed: Allowance, part: float, opened: Spent) -> tuple[Allowance, int]:
    """Return the totals at which a part of a probe ends, and its least steps."""
    totals = {
        unit: getattr(opened, unit) + part * cap
        for unit in ("steps", "bytes", "seconds")
        if (cap := getattr(allowed, unit)) is not None
    }
    whole = {unit: math.ceil(totals[unit]) for unit in ("steps", "bytes") if unit in totals}
    return Allowance(**whole, seconds=totals.get("seconds")), math.ceil(part * allowed.min_steps)


def _is_reached(until: Allowance, spent: Spent, step: Spent) -> bool:
    """Return whether another `step` would pass a cap, as a trial's commit ends."""
    return (
        (until.steps is not None and spent.steps >= until.steps)
        or (until.bytes is not None and spent.bytes + step.bytes > until.bytes)
        or (until.seconds is not None and spent.seconds + step.seconds / 2 >= until.seconds)
    )


@pytest.fixture(scope="session")
def simulated_run() -> type[SimulatedRun]:
    return SimulatedRun
