"""The loop of a tuned run, as a generator of orders: probes, all from one state, and then the steps that stay.

An order says what to do, and with which values to step. The answer is what the steps measured.
"""

import json
from collections.abc import Callable, Generator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from pydantic import BaseModel, Field

from search.budget import spending
from search.budget.link import StepCost
from search.config import Budget
from search.curves.curve_summary import last_losses, usable_median
from search.loop import endings, pacing
from search.loop.endings import Failure, futile
from search.loop.looks import WatchedCommit
from search.loop.series import COMMIT_LOSSES, Series
from search.protocol import Strategy
from search.types import Allowance, Candidate, Course, Decision, Observation, Spent, Values

#: Steps of an order at most: a divergence is noticed at its end.
MOST_STEPS = 64


class Task(IntEnum):
    """A task of an order, for all ranks."""

    SNAPSHOT = 0  # keep a copy of the committed state
    RESTORE = 1  # go back to it
    PROBE = 2  # take steps of a probe
    COMMIT = 3  # take steps that stay
    STOP = 4  # the budget is spent: for whoever tells others of it, since the generator just ends
    GIVE_UP = 5  # end, since commits keep diverging; the steps have the values that failed
    HOLD = 6  # keep a copy of a probe's end, beside that of the committed state
    KEEP = 7  # go to that end
    ACCEPT = 8  # count the steps of the probe just taken as committed; they have these values. No loop gives this order
    START_OVER = 9  # go back to the run's first step


class Order(NamedTuple):
    """A task, and the values of each step to take."""

    task: Task
    steps: Sequence[Values] = ()


class Taken(NamedTuple):
    """The answer to an order: series with one entry per step, each a mean over the ranks; () is not known."""

    losses: Sequence[float]
    step_seconds: Sequence[float] = ()
    gradient_scales: Sequence[float] = ()
    alignments: Sequence[float] = ()
    bytes_sent: int = 0  # by a node on average, since the answer before


#: Generators that yield orders; `send` takes the answer to each, and None at first.
Orders = Generator[Order, Taken | None, None]


class OpenCommit(WatchedCommit):
    """Mutable: a commit under way."""

    series: Series = Field(default_factory=lambda: Series(limit=COMMIT_LOSSES))
    steps: list[Values] = Field(default_factory=list, description="of the order that is not answered yet")


class Begun(BaseModel):
    """A loop within a commit, but for its strategy. JSON both ways."""

    spent: Spent
    decisions: list[Decision]
    failures: list[Failure]
    commit: OpenCommit


class Told(NamedTuple):
    """An observation that the strategy was told, with the candidate or the decision that it is of."""

    what: Candidate | Decision
    observation: Observation


class _End(NamedTuple):
    """The end of a probe that can be gone on from."""

    id: str
    series: Series


class Loop:
    """Mutable: runs a strategy until the budget is spent. Holds its `decisions`, and what the strategy was `told`.

    Args:
        strategy: at the first step of a run; with `begun`, restored.
        budget: of all steps, probes included.
        clock: returns seconds.
        holds: whether the orders HOLD and KEEP are carried out, so that the steps of a probe may stay.
        begun: what an earlier loop left within a commit: the first order is the one that it had no answer to.
    """

    def __init__(
        self,
        strategy: Strategy,
        budget: Budget,
        *,
        clock: Callable[[], float],
        holds: bool = False,
        begun: Begun | None = None,
    ) -> None:
        self.strategy, self.told = strategy, list[Told]()
        self.decisions = begun.decisions if begun else list[Decision]()
        self.failures = begun.failures if begun else list[Failure]()  # since a commit was kept
        self.overfits = False  # for the caller to tell, by its evaluations (`search.curves.overfitting`)
        self._commit = begun.commit if begun else None
        self._budget, self._holds = budget, holds
        spent = begun.spent if begun else Spent()
        self._clock, self._zero = clock, clock() - spent.seconds
        self._steps, self._bytes = spent.steps, spent.bytes

    def run(self, carry_out: Callable[[Order], Taken | None]) -> None:
        """Have each order carried out, until the budget is spent; None answers an order without steps."""
        orders, taken = self.orders(), None
        while (order := _next(orders, taken)) is not None:
            taken = carry_out(order)

    def orders(self) -> Orders:
        """Yield the orders until the budget is spent, or commits keep diverging."""
        cost = None  # of a step of the last commit
        while self._commit or not pacing.is_reached(self._whole, self.spent(), cost):
            if self._commit is None:
                yield from self.order(Task.SNAPSHOT)
                self._commit = OpenCommit(series=(yield from self._search()))
            cost = yield from self._train(self._commit)
            self._commit = None
            if found := futile(self.failures):
                yield from self.order(Task.GIVE_UP, [each.values for each in found])
                return

    def state_dict(self) -> dict[str, Any]:
        """Return what another loop needs to go on within the commit that is under way, as JSON; `begun` reads it.

        Raises:
            RuntimeError: no commit is under way.
        """
        if self._commit is None:
            raise RuntimeError("a search is under way, which has no state of its own: ask within a commit")
        begun = Begun(spent=self.spent(), decisions=self.decisions, failures=self.failures, commit=self._commit)
        told: dict[str, Any] = json.loads(begun.model_dump_json())  # by way of text: NaN is a string there
        return {"journal": dict(self.strategy.state_dict()), **told}

    def spent(self) -> Spent:
        """Return the run's totals."""
        return Spent(steps=self._steps, bytes=self._bytes, seconds=self._clock() - self._zero)

    def order(self, task: Task, steps: Sequence[Values] = ()) -> Generator[Order, Taken | None, Taken]:
        """Yield an order, and count what it took."""
        taken = (yield Order(task, steps)) or Taken(())
        self._steps += len(taken.losses)
        self._bytes += taken.bytes_sent
        return taken

    def take(self, task: Task, series: Series, steps: Sequence[Values]) -> Orders:
        """Take steps of `series` with these values."""
        taken = yield from self.order(task, steps)
        series.extend(
            taken.losses,
            step_seconds=taken.step_seconds,
            gradient_scales=taken.gradient_scales,
            alignments=taken.alignments,
            bytes_sent=taken.bytes_sent,
        )

    @property
    def _whole(self) -> Allowance:
        return pacing.within(Allowance(), self._budget)

    def _search(self) -> Generator[Order, Taken | None, Series]:
        """Probe what the strategy asks for, and decide; return the series that the commit begins with.

        The state is that of the snapshot then, or the end of the probe that is promoted.
        """
        held = live = None
        while (candidate := self.strategy.ask()) is not None:
            if self._holds and live is not None and live.id == self.strategy.leading():
                yield from self.order(Task.HOLD)
                held = live
            yield from self.order(Task.RESTORE)
            live = _End(candidate.id, (yield from self._probe(candidate)))
        ends = {each.id: each for each in (held, live) if each is not None} if self._holds else {}
        decision = self.strategy.decide(ends.keys())
        self.decisions.append(decision)
        if decision.promoted is None:
            yield from self.order(Task.RESTORE)
            return Series(limit=COMMIT_LOSSES)
        promoted = ends[decision.promoted]
        if promoted is not live:
            yield from self.order(Task.KEEP)
        return promoted.series.as_commit()

    def _probe(self, candidate: Candidate) -> Generator[Order, Taken | None, Series]:
        """Try `candidate` until its allowance is spent, it diverges, or the strategy ends it."""
        series, opened, is_cut = Series(), self.spent(), False
        for part in pacing.probe_parts(candidate.allowance, opened, self._budget):
            while not series.diverged and (num_steps := self._fitting(series, part.until, least=part.least)):
                own, cost = spending.minus(self.spent(), opened), series.cost
                steps = [pacing.probe_values(candidate, own, cost, index) for index in range(num_steps)]
                yield from self.take(Task.PROBE, series, steps)
            seen = series.observation(candidate.id, self.spent())
            is_cut = endings.is_cut(seen, self.strategy.watch, part)
            if series.diverged or is_cut:
                break
        self._tell(candidate, series.observation(candidate.id, self.spent(), is_cut=is_cut))
        return series

    def _train(self, commit: OpenCommit) -> Generator[Order, Taken | None, StepCost | None]:
        """Take the steps that stay, unless they are rolled back, and tell; return what a step cost."""
        decision, series = self.decisions[-1], commit.series
        course = yield from self._course(commit, pacing.within(decision.commit_until, self._budget))
        if course != "end":
            yield from self.order(Task.START_OVER if course == "start_over" else Task.RESTORE)
        self.failures = endings.failures_after(self.failures, decision.values, series, course)
        self._tell(decision, endings.closing(series, course, self.spent()))
        return series.cost

    def _course(self, commit: OpenCommit, until: Allowance) -> Generator[Order, Taken | None, Course]:
        """Take the steps of `commit` to the totals `until`, unless the strategy ends them; return how they ended."""
        series = commit.series
        if (course := endings.course_before(self.decisions[-1], is_over=lambda: self._is_over(series))) is not None:
            return course
        while commit.steps or not pacing.is_reached(until, self.spent(), series.cost):
            commit.steps = commit.steps or self._coming(commit, until)
            yield from self.take(Task.COMMIT, series, commit.steps)
            commit.steps = []
            if series.diverged:
                return "roll_back"
            if series.num_steps >= commit.next_look(until, self.spent(), series.cost, num_done=series.num_steps):
                course = self._look(commit)
                if course != "go_on":
                    return course
        return commit.last_look(series.num_steps, lambda: self._look(commit))

    def _coming(self, commit: OpenCommit, until: Allowance) -> list[Values]:
        """Return the values of the next steps of `commit`, up to the next look at it."""
        series, spent = commit.series, self.spent()
        due = commit.next_look(until, spent, series.cost, num_done=series.num_steps) - series.num_steps
        num_steps = min(self._fitting(series, until), max(1, due))
        return [self.strategy.values(pacing.after(index, spent, series.cost)) for index in range(num_steps)]

    def _look(self, commit: OpenCommit) -> Course:
        series = commit.series
        return commit.look(
            series.observation(None, self.spent(), overfits=self.overfits),
            self.strategy.watch,
            num_done=series.num_steps,
            is_over=lambda: self._is_over(series),
            is_better=lambda: has_gained(series),
        )

    def _is_over(self, series: Series) -> bool:
        """Return whether the budget is spent, in a commit of which there is `series`."""
        return pacing.is_reached(self._whole, self.spent(), series.cost)

    def _fitting(self, series: Series, until: Allowance, *, least: int = 0) -> int:
        """Return how many steps of `series` to take next towards the totals `until`. It gets `least` of them in all.

        In units other than steps, the cost of a step is an estimate. So an order at most doubles the series, and takes
        at most half of what fits.
        """
        done, spent, cost = series.num_steps, self.spent(), series.cost
        if done < least:
            return min(least - done, MOST_STEPS)
        if pacing.is_reached(until, spent, cost):
            return 0
        left = pacing.steps_left(until, spent, cost)
        if until.bytes is not None or until.seconds is not None:
            left = min(left, max(pacing.FIRST_PUSH, min(done, left // 2)))
        return max(1, int(min(left, MOST_STEPS)))

    def _tell(self, what: Candidate | Decision, observation: Observation) -> None:
        self.strategy.tell(observation)
        self.told.append(Told(what, observation))


def has_gained(series: Series) -> bool:
    """Return whether the median of a series' last losses is below that of its first ones."""
    first, last = usable_median(series.trace.opening), usable_median(last_losses(series.losses, series.num_steps))
    return first is not None and last is not None and last < first


def _next(orders: Orders, taken: Taken | None) -> Order | None:
    """Return the next order; None: there is none."""
    try:
        return orders.send(taken)
    except StopIteration:
        return None
