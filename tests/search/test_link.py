"""The link rule: what is measured tells compute from transfer, and the level follows."""

import pytest

from search.bayesian.link_rule import _suggested
from search.budget import link
from search.budget.link import Link, StepCost, is_hidden
from search.space import Axis, SearchSpace
from search.types import Values

SPACE = SearchSpace(
    optimizer="sgd",
    guess=Values(learning_rate=0.1),
    axes=(Axis(name="level", low=0.003, high=0.5),),
    dense_bytes=1_000_000,
)


def _steps(*sent: int, compute_s: float = 0.01, mbps: float = 100.0) -> list[StepCost]:
    return [StepCost(bytes=count, seconds=compute_s + 8 * count / (mbps * 1e6)) for count in sent]


def test_steps_at_several_levels_tell_compute_from_transfer():
    fitted = link.fit(_steps(10_000, 50_000, 200_000))

    assert fitted is not None
    assert (fitted.compute_s, 8 / fitted.seconds_per_byte) == pytest.approx((0.01, 100e6))


@pytest.mark.parametrize("sent", [(), (10_000,), (10_000, 11_000), (0, 10_000)])
def test_steps_of_much_the_same_bytes_tell_nothing(sent: tuple[int, ...]):
    assert link.fit(_steps(*sent)) is None


def test_neither_compute_nor_transfer_is_negative():
    falling = link.fit([StepCost(bytes=10, seconds=0.03), StepCost(bytes=1000, seconds=0.01)])
    steep = link.fit([StepCost(bytes=1000, seconds=0.001), StepCost(bytes=2000, seconds=0.003)])

    assert falling == Link(compute_s=0.02, seconds_per_byte=0.0)
    assert steep is not None and steep.compute_s == 0 and steep.seconds_per_byte == pytest.approx(1.4e-6)


@pytest.mark.parametrize(
    ("compute_s", "transfer_s", "density"),
    [(0.01, 0.1, 0.025), (10.0, 0.1, 1.0), (1e-6, 10.0, 0.001), (0.1, 0.0, 1.0)],
)
def test_the_rule_spends_a_quarter_of_compute_on_sending(compute_s: float, transfer_s: float, density: float):
    assert link.rule(compute_s, transfer_s, (0.001, 1.0)) == pytest.approx(density)


@pytest.mark.parametrize(("slowdown", "share"), [(10, 1 / 10), (1 / 10, 10), (1.5, 1)])
def test_the_level_follows_a_link_that_changes_and_stays_where_it_hardly_does(slowdown: float, share: float):
    before = link.fit(_steps(10_000, 200_000))
    assert before is not None
    current = link.rule(before.compute_s, 0.08, (0.003, 0.5))
    after = link.fit(_steps(10_000, 30_000, mbps=100 / slowdown))
    assert after is not None

    assert _suggested(after, SPACE, current) == pytest.approx(share * current)


def test_where_nobody_knows_what_a_dense_step_sends_the_level_stays():
    known = Link(compute_s=0.01, seconds_per_byte=1e-5)

    assert _suggested(known, SPACE.model_copy(update={"dense_bytes": None}), 0.02) == 0.02


def test_steps_whose_bytes_take_less_than_they_scatter_leave_the_link_as_it_is_known():
    known = Link(compute_s=0.01, seconds_per_byte=1e-7)
    alike = [StepCost(bytes=20_000, seconds=0.012), StepCost(bytes=10_000, seconds=0.0122)]

    assert is_hidden(known, alike)
    assert not is_hidden(known, [StepCost(bytes=200_000, seconds=0.03), StepCost(bytes=10_000, seconds=0.011)])
    assert not is_hidden(known, [StepCost(bytes=20_000, seconds=0.03), StepCost(bytes=10_000, seconds=0.02)])
