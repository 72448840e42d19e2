"""Rank 0's part in a tuned loop: the orders that all ranks carry out, in a run whose first steps may only be timed."""

from collections.abc import Callable, Generator, Mapping
from statistics import median, median_low
from typing import Any

from search.budget import spending
from search.budget.link import StepCost
from search.config import Budget
from search.loop import pacing
from search.loop.orders import Begun, Loop, Order, Orders, Taken, Task
from search.loop.pacing import FIRST_PUSH
from search.loop.series import Series
from search.protocol import Strategy
from search.space import SearchSpace
from search.types import Allowance

#: A round is timed to its end if the rest of it is at most this share of the steps that still fit in the budget.
TIMED_PART = 0.05


class Leader:
    """Mutable: the `loop` of the strategy that `build` makes for a `space`, until `budget` is spent.

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
        self._build, self._space, self._budget, self._clock = build, space, budget, clock
        self._num_timed, self._interval = num_timed, interval
        self.loop = Loop(build(space=space), budget, clock=clock)

    def orders(self) -> Orders:
        """Yield the orders to all ranks until the budget is spent."""
        is_over = bool(self._num_timed) and (yield from self._time())
        if not is_over:
            yield from self.loop.orders()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a loop had this `state_dict`: `orders` begins with the order that it had no answer to."""
        from search import strategies  # here, since BoTorch loads for seconds

        begun = Begun.model_validate({name: value for name, value in state.items() if name != "journal"})
        journal, before = state["journal"], Budget.model_validate(state["journal"]["budget"])
        if before != self._budget:  # which has grown
            begun.decisions[-1] = last = spending.stretched(begun.decisions[-1], before, self._budget)
            journal = strategies.extended(journal, self._budget, until=last.commit_until)
        strategy = strategies.restore(journal)
        self._num_timed = 0
        self.loop = Loop(strategy, self._budget, clock=self._clock, begun=begun)

    def _time(self) -> Generator[Order, Taken | None, bool]:
        """Measure the cost of a step, and build the strategy anew with it. The search is charged for these steps.

        If the budget is too small for a whole round, or a loss is not finite, the strategy begins as if nothing were
        timed. If these steps have spent the budget, they stay: the run would have trained nothing. Returns whether they
        have.
        """
        loop, series, opening = self.loop, Series(), self._space.opening
        yield from loop.order(Task.SNAPSHOT)
        yield from loop.take(Task.PROBE, series, [opening] * FIRST_PUSH)
        if pacing.is_reached(self._whole, loop.spent(), series.cost) and not series.diverged:
            yield from loop.order(Task.ACCEPT, [opening] * series.num_steps)
            return True
        rest = self._num_timed - FIRST_PUSH
        fits = not series.diverged and rest <= TIMED_PART * self._steps_left(series)
        if fits and rest:
            yield from loop.take(Task.PROBE, series, [opening] * rest)
        yield from loop.order(Task.RESTORE)
        if fits and not series.diverged:
            step = cost_of_rounds(series, self._interval)
            loop.strategy = self._build(space=self._space.model_copy(update={"step": step}))
        return False

    @property
    def _whole(self) -> Allowance:
        return pacing.within(Allowance(), self._budget)

    def _steps_left(self, series: Series) -> float:
        """Return how many steps still fit in the budget, by the median seconds of a step: the first may compile."""
        usual = StepCost(bytes=series.bytes_sent / series.num_steps, seconds=median(series.step_seconds[1:]))
        return pacing.steps_left(self._whole, self.loop.spent(), usual)


def cost_of_rounds(series: Series, interval: int) -> StepCost:
    """Return the mean cost of a step, after whole rounds in which ranks exchange in each `interval`-th step."""
    alone, met = list[float](), list[float]()
    for number, seconds in enumerate(series.step_seconds[1:], start=2):  # the first may compile, the next ones too
        (alone if number % interval else met).append(seconds)
    usual = median_low(alone or met)
    of_exchange = max(0.0, median_low(met) - usual)
    return StepCost(bytes=series.bytes_sent / series.num_steps, seconds=usual + of_exchange / interval)
