"""Rank 0's part in a tuned loop: it orders probes, all from one state, and then the steps that stay.

An order says how many steps to take, with which values. The answer is what they measured.
"""

import math
from collections.abc import Callable, Generator, Sequence
from itertools import takewhile
from statistics import median, median_low
from typing import NamedTuple

from search.budget import spending
from search.budget.link import StepCost
from search.budget.spending import Amounts, part_spent
from search.config import Budget
from search.curves.curve_summary import OPENING_LOSSES, last_losses, usable_median
from search.protocol import PROBE_PARTS, Strategy
from search.space import SearchSpace
from search.types import Allowance, Candidate, Course, Decision, Observation, Spent, Values

#: The tasks of all ranks: take a snapshot of the committed state, restore it, take steps of a probe or of a commit,
#: stop, and give up because commits keep diverging.
SNAPSHOT, RESTORE, PROBE, COMMIT, STOP, GIVE_UP = range(6)
#: A task, and the values of each step to take.
Order = tuple[int, list[Values]]
#: Replaces a cost that is unknown or 0.
TINY = 1e-12
#: Steps of an order while little is known about the cost of a step.
FIRST = 4
#: A round is timed to its end if the rest of it is at most this share of the steps that still fit in the budget.
TIMED_PART = 0.05
#: A commit is taken in about this many parts; the controller is asked about it after each.
COMMIT_PARTS = 20


class Taken(NamedTuple):
    """The answer to an order: series with one entry per step, each a mean over the ranks."""

    losses: list[float]
    step_seconds: list[float]
    gradient_scales: list[float]
    alignments: list[float]
    bytes_sent: int  # by a node on average, since the answer before


NOTHING = Taken([], [], [], [], 0)


class Failure(NamedTuple):
    """A commit that diverged: its values, and whether it diverged in its first step, before any update."""

    values: Values
    is_at_once: bool


#: Generators that yield orders; `send` takes the answer to each, and None at first.
Asking = Generator[Order, Taken | None, None]
Answered = Generator[Order, Taken | None, Taken]


class Line:
    """Mutable: the measurements of a probe, or of a commit so far."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self._step_seconds: list[float] = []
        self._gradient_scales: list[float] = []
        self._alignments: list[float] = []
        self._bytes_sent = 0

    def add(self, taken: Taken) -> None:
        self.losses += taken.losses
        self._step_seconds += taken.step_seconds
        self._gradient_scales += taken.gradient_scales
        self._alignments += taken.alignments
        self._bytes_sent += taken.bytes_sent

    @property
    def diverged(self) -> bool:
        return not all(map(math.isfinite, self.losses))

    def failure(self, values: Values) -> Failure | None:
        """Return how a commit of `values` failed, or None if it has not diverged."""
        return Failure(values, not math.isfinite(self.losses[0])) if self.diverged else None

    @property
    def cost(self) -> Amounts:
        """The mean cost of a step; 0 where it is not known. Seconds leave out the first step, which may calibrate."""
        timed = self._step_seconds[1:] or [0.0]
        mean_bytes = self._bytes_sent / max(1, len(self.losses))
        return {"steps": 1.0, "bytes": mean_bytes, "seconds": sum(timed) / len(timed)}

    @property
    def usual_seconds(self) -> float:
        """The median seconds of a step: the first may compile, and the next ones too."""
        return median(self._step_seconds[1:] or [0.0])

    def cost_of_rounds(self, interval: int) -> StepCost:
        """Return the mean cost of a step, after whole rounds in which ranks exchange in each `interval`-th step."""
        alone, met = list[float](), list[float]()
        for number, seconds in enumerate(self._step_seconds[1:], start=2):  # the first may compile, the next ones too
            (alone if number % interval else met).append(seconds)
        usual = median_low(alone or met)
        of_meeting = max(0.0, median_low(met) - usual)
        return StepCost(bytes=self.cost["bytes"], seconds=usual + of_meeting / interval)

    @property
    def has_gained(self) -> bool:
        """True if the median of its last losses is below that of its first."""
        last = usable_median(last_losses(self.losses, len(self.losses)))
        first = usable_median(self.losses[:OPENING_LOSSES])
        return first is not None and last is not None and last < first

    def observation(
        self, candidate_id: str | None, spent: Spent, *, is_cut: bool = False, rolled_back: bool = False
    ) -> Observation:
        """Return the observation that the strategy gets, which ends before the first loss that is not finite.

        `candidate_id` is None for a commit.
        """
        finite = tuple(takewhile(math.isfinite, self.losses))
        told = len(finite) / max(1, len(self.losses))
        return Observation(
            candidate_id=candidate_id,
            losses=finite,
            step_seconds=tuple(self._step_seconds[: len(finite)]),
            gradient_scales=tuple(self._gradient_scales[: len(finite)]),
            alignments=tuple(self._alignments[: len(finite)]),
            bytes_sent=round(told * self._bytes_sent),
            diverged=self.diverged,
            is_cut=is_cut,
            rolled_back=rolled_back,
            spent=spent,
        )


class Leader:
    """Mutable: runs the strategy that `build` makes for a `space` until `budget` is spent. Holds its `decisions`.

    `clock` returns seconds. The first `num_timed` steps only measure the cost of a step, and are taken back. They are
    whole rounds, in which ranks exchange in each `interval`-th step.
    """

    def __init__(
        self,
        build: Callable[..., Strategy],
        space: SearchSpace,
        budget: Budget,
        *,
        clock: Callable[[], float],
        num_timed: int,
        interval: int = 1,
    ) -> None:
        self.decisions: list[Decision] = []
        self._build, self._space, self._budget = build, space, budget
        self._num_timed, self._interval = num_timed, interval
        self._strategy = build(space=space)
        self._clock, self._zero = clock, clock()
        self._steps = self._bytes = 0

    def orders(self) -> Asking:
        """Yield the orders to all ranks until the budget is spent."""
        if self._num_timed:
            yield from self._time()
        line, failure = Line(), None
        while num_fitting(spending.caps(self._budget), self._spent(), line.cost) >= 1:
            yield from self._order(SNAPSHOT)
            while (candidate := self._strategy.ask()) is not None:
                yield from self._probe(candidate)
            yield from self._order(RESTORE)
            self.decisions.append(self._strategy.decide())
            line = Line()
            yield from self._commit(line, self.decisions[-1].commit_until)
            before, failure = failure, line.failure(self.decisions[-1].values)
            if failure and fails_again(before, failure):
                yield from self._order(GIVE_UP, [failure.values])
                return

    def _time(self) -> Asking:
        """Measure the cost of a step, and build the strategy anew with it. The search is charged for these steps.

        If the budget is too small for a whole round, the strategy begins as if nothing were timed.
        """
        line, opening = Line(), self._space.opening
        yield from self._order(SNAPSHOT)
        yield from self._take(PROBE, line, FIRST, lambda spent: opening)
        rest = self._num_timed - FIRST
        usual = {**line.cost, "seconds": line.usual_seconds}
        is_whole = rest <= TIMED_PART * num_fitting(spending.caps(self._budget), self._spent(), usual)
        if rest and is_whole:
            yield from self._take(PROBE, line, rest, lambda spent: opening)
        yield from self._order(RESTORE)
        if is_whole:
            step = line.cost_of_rounds(self._interval)
            self._strategy = self._build(space=self._space.model_copy(update={"step": step}))

    def _probe(self, candidate: Candidate) -> Asking:
        """Try `candidate` until its allowance is spent, it diverges, or the strategy ends it."""
        yield from self._order(RESTORE)
        line, opened, allowance = Line(), self._spent(), candidate.allowance

        def values(spent: Spent) -> Values:
            rate = candidate.learning_rate_at(part_spent(allowance, spending.minus(spent, opened)))
            return candidate.values.model_copy(update={"learning_rate": rate})

        is_cut = False
        for part in PROBE_PARTS:
            ends = {unit: getattr(opened, unit) + part * cap for unit, cap in spending.caps(allowance).items()}
            until, least = self._within_budget(ends), math.ceil(part * allowance.min_steps)
            while not line.diverged and (num_steps := next_steps(line, until, self._spent(), at_least=least)):
                yield from self._take(PROBE, line, num_steps, values)
            seen = line.observation(candidate.id, self._spent())
            is_cut = part < 1 and not line.diverged and self._strategy.watch(seen) != "go_on"
            if line.diverged or is_cut:
                break
        self._strategy.tell(line.observation(candidate.id, self._spent(), is_cut=is_cut))

    def _commit(self, line: Line, ends: Allowance) -> Asking:
        """Take the steps that stay, to the totals `ends`, unless the strategy ends them or rolls them back."""
        until = self._within_budget(spending.caps(ends))
        course: Course = "go_on"
        while course == "go_on" and (num_steps := next_steps(line, until, self._spent())):
            whole = len(line.losses) + num_fitting(until, self._spent(), line.cost)
            part = max(FIRST, whole // COMMIT_PARTS)
            yield from self._take(COMMIT, line, min(num_steps, part), self._strategy.values)
            course = self._course(line)
        if course == "roll_back":
            yield from self._order(RESTORE)
        self._strategy.tell(line.observation(None, self._spent(), rolled_back=course == "roll_back"))

    def _course(self, line: Line) -> Course:
        """Return how the commit goes on. One that has gained is not rolled back without room to search again."""
        if line.diverged:
            return "roll_back"
        course = self._strategy.watch(line.observation(None, self._spent()))
        is_over = num_fitting(spending.caps(self._budget), self._spent(), line.cost) < 1
        return "end" if course == "roll_back" and is_over and line.has_gained else course

    def _take(self, task: int, line: Line, num_steps: int, values: Callable[[Spent], Values]) -> Asking:
        """Take steps of `line`, each with the `values` for the totals expected before it."""
        spent, cost = self._spent(), line.cost
        coming = [values(after(index, spent, cost)) for index in range(num_steps)]
        line.add((yield from self._order(task, coming)))

    def _order(self, task: int, steps: Sequence[Values] = ()) -> Answered:
        taken = (yield task, [*steps]) or NOTHING
        self._steps += len(taken.losses)
        self._bytes += taken.bytes_sent
        return taken

    def _spent(self) -> Spent:
        """Return the run's totals."""
        return Spent(steps=self._steps, bytes=self._bytes, seconds=self._clock() - self._zero)

    def _within_budget(self, ends: Amounts) -> Amounts:
        """Return the totals `ends`, capped by the budget."""
        budget = spending.caps(self._budget)
        return {unit: min(caps[unit] for caps in (budget, ends) if unit in caps) for unit in {*budget, *ends}}


def fails_again(before: Failure | None, failure: Failure) -> bool:
    """Return whether two commits in a row diverged by the same decision, or in their first steps: no rate is at fault.

    The loop's data move on between two commits, so what diverged is tried a second time, but not a third.
    """
    if before is None:
        return False
    return before.values == failure.values or (before.is_at_once and failure.is_at_once)


def num_fitting(until: Amounts, spent: Spent, cost: Amounts) -> int:
    """Return how many more whole steps of `cost` fit into the totals `until`; a huge number if they cost nothing."""
    fitting: list[float] = [(cap - getattr(spent, unit)) / max(cost[unit], TINY) for unit, cap in until.items()]
    return max(0, math.floor(min(fitting)))


def next_steps(line: Line, until: Amounts, spent: Spent, *, at_least: int = 0) -> int:
    """Return how many steps of `line` to take next towards the totals `until`. It gets `at_least` so many in all.

    In units other than steps, the cost of a step is an estimate. So an order at most doubles the line, and takes at
    most half of what fits.
    """
    done, fitting = len(line.losses), num_fitting(until, spent, line.cost)
    if done < at_least:
        return at_least - done
    if set(until) == {"steps"}:
        return fitting
    return min(fitting, max(FIRST, min(done, fitting // 2)))


def after(num_steps: int, spent: Spent, cost: Amounts) -> Spent:
    """Return the totals after `num_steps` more steps of `cost`."""
    return Spent(
        steps=spent.steps + num_steps,
        bytes=spent.bytes + round(num_steps * cost["bytes"]),
        seconds=spent.seconds + num_steps * cost["seconds"],
    )
