"""Segments never pass a cap, always advance, and read no clock without a time budget."""

import pytest
from hypothesis import given, strategies as st

from search.budget.link import StepCost
from search.config import Budget
from search.loop.pacing import FIRST_PUSH, after, is_reached, within
from search.types import Allowance, Spent
from service.cluster.segment_length import (
    CLOCKLESS_PUSH,
    MAX_PUSH_S,
    MAX_SLOW_PUSH_S,
    MOST_PIECES,
    cost_of,
    next_piece,
    next_push,
)
from trainers.segment import SegmentResult

COST = StepCost(bytes=1000, seconds=0.01)


@given(steps=st.integers(1, 10_000), spent=st.integers(0, 9_999), most=st.integers(1, 500))
def test_a_budget_in_steps_is_spent_to_the_step(steps: int, spent: int, most: int) -> None:
    until, totals = Allowance(steps=steps), Spent(steps=min(spent, steps))

    if is_reached(until, totals, COST):
        assert totals.steps == steps
    else:
        assert 1 <= next_push(until, totals, COST, most=most) <= min(most, steps - totals.steps)


@given(cap=st.integers(1, 10**7), step_bytes=st.integers(1, 10**5))
def test_a_budget_in_bytes_is_never_passed_once_the_cost_is_known(cap: int, step_bytes: int) -> None:
    cost, totals, until = StepCost(bytes=step_bytes, seconds=0.01), Spent(), Allowance(bytes=cap)

    for _ in range(5):
        if is_reached(until, totals, cost):
            break
        sent = next_push(until, totals, cost, most=10**9) * step_bytes
        totals = Spent(bytes=totals.bytes + sent)

    assert totals.bytes <= cap


@given(left=st.floats(0.001, 100), step_s=st.floats(1e-4, 1))
def test_a_budget_in_seconds_ends_within_half_a_step(left: float, step_s: float) -> None:
    cost, until = StepCost(bytes=0, seconds=step_s), Allowance(seconds=left)

    if not is_reached(until, Spent(), cost):
        took_s = next_push(until, Spent(), cost, most=10**9) * step_s
        assert took_s <= min(left, max(MAX_PUSH_S, FIRST_PUSH * step_s)) + step_s


@pytest.mark.parametrize("seconds", [0.0001, 0.5, 60.0])
def test_without_a_budget_in_seconds_the_step_time_decides_nothing(seconds: float) -> None:
    cost, until = StepCost(bytes=1000, seconds=seconds), Allowance(steps=100)

    assert next_push(until, Spent(seconds=seconds), cost, most=50) == CLOCKLESS_PUSH
    assert not is_reached(until, Spent(steps=99, seconds=1e9), cost)


@given(cap=st.integers(1, 10**7), unit=st.sampled_from(["steps", "bytes", "seconds"]))
def test_a_rate_that_always_changes_has_few_pieces_however_long_the_run(cap: int, unit: str) -> None:
    budget, cost = Budget.model_validate({unit: cap}), StepCost(bytes=1, seconds=1.0)
    until, spent, lengths = within(Allowance(), budget), Spent(), list[int]()

    while not is_reached(until, spent, cost):
        least = next_push(until, spent, cost, most=25)  # to the next evaluation
        lengths.append(next_piece(until, spent, cost, budget=budget, least=least))
        spent = after(lengths[-1], spent, cost)
        assert lengths[-1] >= least

    assert sum(lengths) == cap
    assert len(lengths) <= MOST_PIECES + 1 or max(lengths) <= CLOCKLESS_PUSH


def test_the_first_push_is_short_because_its_cost_is_unknown() -> None:
    assert next_push(Allowance(seconds=1e6), Spent(), None, most=10**9) == FIRST_PUSH


def _pushed(*seconds: float, sent: int = 0) -> SegmentResult:
    return SegmentResult(
        first_step=0,
        losses=(1.0,) * len(seconds),
        step_seconds=seconds,
        bytes_sent=({"gradient": sent},),
        bytes_dense=0,
        diverged=False,
    )


@given(stall_s=st.floats(0.4, 60), step_s=st.floats(1e-4, 0.1), num_steps=st.integers(1, 8))
def test_after_a_stall_pushes_are_soon_as_long_as_before(stall_s: float, step_s: float, num_steps: int) -> None:
    until, usual = Allowance(seconds=1e6), StepCost(bytes=0, seconds=step_s)
    cost = cost_of(_pushed(*[step_s] * (num_steps - 1), stall_s), usual)

    for _ in range(3):
        push = next_push(until, Spent(), cost, most=10**9)
        cost = cost_of(_pushed(*[step_s] * push), cost)

    assert abs(next_push(until, Spent(), cost, most=10**9) - next_push(until, Spent(), usual, most=10**9)) <= 1


@pytest.mark.parametrize("step_s", [0.34, 1.0, 2.5])
def test_slow_steps_are_pushed_together_while_a_cancel_is_still_heard_soon(step_s: float) -> None:
    cost = StepCost(bytes=0, seconds=step_s)

    assert next_push(Allowance(seconds=1e6), Spent(), cost, most=10**9) == FIRST_PUSH
    assert FIRST_PUSH * step_s <= MAX_SLOW_PUSH_S


@given(average_s=st.floats(0.1, 30), period=st.integers(2, 500))
def test_the_cost_of_a_step_has_its_share_of_an_average_whichever_push_that_is_in(
    average_s: float, period: int
) -> None:
    until, cost, step = Allowance(seconds=1e9), None, 0
    mean, costs = 0.01 + average_s / period, list[float]()

    while step < 20 * period:
        push = next_push(until, Spent(), cost, most=10**9)
        times = [0.01 + average_s * ((step + 1 + index) % period == 0) for index in range(push)]
        cost, step = cost_of(_pushed(*times), cost, round_steps=period), step + push
        costs += [cost.seconds] * (push if cost and step > 8 * period else 0)

    assert 0.4 * mean < sum(costs) / len(costs) < 2.5 * mean


def test_a_push_of_one_step_shows_what_it_costs() -> None:
    assert cost_of(_pushed(0.5, sent=7), None) == StepCost(bytes=7, seconds=0.5)
    assert cost_of(_pushed(), COST) == COST  # its first step diverged
