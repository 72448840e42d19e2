"""The loop of a tuned run: its orders and what it tells are as recorded, it keeps its budget, and it goes on."""

import json
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from search import strategies
from search.baselines.guess import Fixed
from search.config import BoConfig, Budget, ControllerConfig, FixedConfig
from search.loop.orders import MOST_STEPS, Begun, Loop, Order, Taken, Task
from search.protocol import Strategy
from search.space import SearchSpace
from search.types import Allowance, Candidate, Decision, Values

SPACE = SearchSpace(optimizer="sgd", guess=Values(learning_rate=0.1))
GOLDEN = Path(__file__).parent / "loop.json"


@dataclass
class Model:
    """Carries out orders by arithmetic: its loss falls best at a rate of 3, and rates above 50 blow up.

    The batch of step `bad_step` is not finite, and a step takes `seconds` of its clock.
    """

    bad_step: int | None = None
    seconds: float = 0.0
    now: float = 0.0
    rates: list[float] = field(default_factory=list)  # that led to the state
    slots: dict[Task, list[float]] = field(default_factory=dict)
    orders: list[Order] = field(default_factory=list)

    def carry_out(self, order: Order) -> Taken | None:
        self.orders.append(order)
        if order.task in (Task.SNAPSHOT, Task.HOLD):
            self.slots[order.task] = list(self.rates)
        elif order.task in (Task.RESTORE, Task.KEEP):
            self.rates = list(self.slots[Task.SNAPSHOT if order.task == Task.RESTORE else Task.HOLD])
        if order.task not in (Task.PROBE, Task.COMMIT):
            return None
        losses = [self._step(values.learning_rate) for values in order.steps]
        return Taken(losses, [self.seconds] * len(losses), [1.0] * len(losses), [0.1] * len(losses))

    def _step(self, rate: float) -> float:
        self.now += self.seconds
        self.rates.append(rate)
        if max(self.rates) > 50 or len(self.rates) - 1 == self.bad_step:
            return math.nan
        return 2.0 / (1.0 + 0.01 * sum(min(each / 3, 3 / each) for each in self.rates if each))


def built(budget: Budget, config: ControllerConfig | None = None) -> Strategy:
    return strategies.build(config or BoConfig(), space=SPACE, seed=0, budget=budget)


def ran(model: Model, budget: Budget, config: ControllerConfig | None = None, **how: Any) -> Loop:
    loop = Loop(built(budget, config), budget, clock=lambda: model.now, **how)
    loop.run(model.carry_out)
    return loop


def course(model: Model, loop: Loop) -> list[list[Any]]:
    """Return the orders, with their first and last rates, and then what was told."""
    orders = [
        [order.task.name, len(order.steps), *(order.steps[index].learning_rate for index in (0, -1) if order.steps)]
        for order in model.orders
    ]
    told = [
        [seen.candidate_id, seen.trace and seen.trace.num_steps, sum(seen.losses), seen.is_cut, seen.rolled_back]
        for _, seen in loop.told
    ]
    return orders + told


@pytest.mark.parametrize("how", ["plain", "holds", "bad batch", "seconds"])
def test_orders_and_what_is_told_are_as_recorded(how: str) -> None:
    budget = Budget(seconds=48) if how == "seconds" else Budget(steps=480)
    model = Model(bad_step=150 if how == "bad batch" else None, seconds=0.1)

    found = course(model, ran(model, budget, holds=how == "holds"))

    recorded = json.loads(GOLDEN.read_text())[how]
    assert len(found) == len(recorded)
    for entry, expected in zip(found, recorded, strict=True):
        assert entry == [pytest.approx(each, rel=1e-5) if isinstance(each, float) else each for each in expected]


@pytest.mark.parametrize("steps", [1, 5, 37, 300, 2000])
@pytest.mark.parametrize("kind", [BoConfig(), FixedConfig()])
def test_a_budget_in_steps_is_spent_to_the_step_in_short_orders(kind: ControllerConfig, steps: int) -> None:
    model = Model()
    ran(model, Budget(steps=steps), kind)

    lengths = [len(order.steps) for order in model.orders]
    assert sum(lengths) == steps and max(lengths) <= MOST_STEPS


@pytest.mark.parametrize("seconds", [0.07, 0.5, 1.3])
def test_a_budget_in_seconds_ends_within_half_a_step(seconds: float) -> None:
    model = Model(seconds=seconds)
    ran(model, Budget(seconds=100), FixedConfig())

    assert abs(model.now - 100) <= seconds / 2 + 1e-9


def test_the_steps_of_a_winner_begin_its_commit_where_its_end_is_held() -> None:
    model = Model()
    loop = ran(model, Budget(steps=480), BoConfig(revisit="stages", max_search_fraction=0.5), holds=True)

    promoted = [what for what, _ in loop.told if not isinstance(what, Candidate) and what.promoted is not None]
    lengths = {what.id: len(seen.losses) for what, seen in loop.told if isinstance(what, Candidate)}
    commits = {seen.trace.num_steps for what, seen in loop.told if what in promoted and seen.trace}
    assert promoted and all(lengths[each.promoted or ""] < max(commits) for each in promoted)
    kept = [seen for what, seen in loop.told if not isinstance(what, Candidate) and not seen.rolled_back]
    assert len(model.rates) == sum(seen.trace.num_steps for seen in kept if seen.trace)


@pytest.mark.parametrize("is_in_a_commit", [lambda loop: True, lambda loop: len(loop.decisions) > 1])
def test_a_loop_goes_on_from_its_json_within_a_commit(is_in_a_commit: Callable[[Loop], bool]) -> None:
    budget, whole = Budget(steps=480), Model(bad_step=90)
    loop = Loop(built(budget), budget, clock=lambda: 0.0)
    states, copies = list[str](), list[Model]()

    def carry_out(order: Order) -> Taken | None:
        if order.task == Task.COMMIT and is_in_a_commit(loop) and not states:
            states.append(json.dumps(loop.state_dict()))
            copies.append(Model(90, rates=list(whole.rates), slots=dict(whole.slots)))
            whole.orders.clear()
        return whole.carry_out(order)

    loop.run(carry_out)
    state, [again] = json.loads(states[0]), copies
    strategy, begun = strategies.restore(state.pop("journal")), Begun.model_validate(state)
    resumed = Loop(strategy, budget, clock=lambda: 0.0, begun=begun)
    resumed.run(again.carry_out)

    assert again.orders == whole.orders and again.rates == whole.rates
    assert resumed.strategy.state_dict() == loop.strategy.state_dict()
    assert resumed.decisions == loop.decisions


def test_a_search_has_no_state_of_its_own() -> None:
    loop = Loop(built(Budget(steps=480)), Budget(steps=480), clock=lambda: 0.0)
    next(loop.orders())

    with pytest.raises(RuntimeError, match="ask within a commit"):
        loop.state_dict()


@pytest.mark.parametrize(("steps", "num_failed"), [(2000, 3), (480, 6)])  # long commits, or such that begin just before
def test_a_loop_ends_where_no_rate_helps_and_says_which_failed(steps: int, num_failed: int) -> None:
    model = Model(bad_step=150)
    loop = ran(model, Budget(steps=steps))

    last = model.orders[-1]
    assert last.task == Task.GIVE_UP and len({values.learning_rate for values in last.steps}) == num_failed
    assert [failure.num_steps for failure in loop.failures] == [loop.failures[0].num_steps] * num_failed
    assert sum(len(order.steps) for order in model.orders[:-1]) < steps


class Hasty(Fixed):
    """Its first commit has no step."""

    def decide(self, held: Collection[str] = ()) -> Decision:
        decision = super().decide(held)
        return decision.model_copy(update={"commit_until": Allowance(steps=0)}) if not self._num_closed else decision


def test_a_commit_without_a_step_is_closed_and_the_next_one_spends_the_budget() -> None:
    model, budget = Model(), Budget(steps=20)
    loop = Loop(Hasty(SPACE, budget, FixedConfig()), budget, clock=lambda: 0.0)

    loop.run(model.carry_out)

    assert [seen.trace.num_steps for _, seen in loop.told if seen.trace] == [0, 20]
