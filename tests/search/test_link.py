"""The link rule: measurements separate compute from transfer, and the level follows."""

import pytest

from search.bayesian.link_rule import suggested_level, with_best_density
from search.bayesian.setup import SearchSetup
from search.budget import link
from search.budget.link import ABOVE, BELOW, KNEE, Link, StepCost, is_hidden
from search.config import BoConfig, Budget
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


DENSITIES = tuple(10 ** (-3 + each / 100) for each in range(301))


def _best(compute_s: float, transfer_s: float, **budget: float) -> float:
    """Return the best density where a dense step sends 1 MB, which takes `transfer_s`."""
    return link.best_density(
        budget or {"seconds": 60.0},
        DENSITIES,
        lambda density: StepCost(bytes=1e6 * density, seconds=compute_s + density * transfer_s),
    )


@pytest.mark.parametrize(
    ("compute_s", "transfer_s", "share"), [(0.01, 0.1, BELOW / (1 - BELOW)), (0.02, 0.02, ABOVE / (1 - ABOVE))]
)
def test_where_seconds_count_sending_takes_a_share_of_compute(compute_s: float, transfer_s: float, share: float):
    assert _best(compute_s, transfer_s) * transfer_s == pytest.approx(share * compute_s, rel=0.02)


@pytest.mark.parametrize(
    ("compute_s", "transfer_s", "density"),
    [(0.1, 0.4, KNEE), (10.0, 0.1, 1.0), (1e-6, 10.0, 0.001), (0.1, 0.0, 1.0)],
)
def test_the_density_stays_at_the_knee_and_within_its_range(compute_s: float, transfer_s: float, density: float):
    assert _best(compute_s, transfer_s) == pytest.approx(density)


def test_where_bytes_alone_count_the_sparsest_teaches_most_and_where_steps_alone_do_the_densest():
    assert _best(0.01, 0.1, bytes=1e9) == pytest.approx(0.001)
    assert _best(0.01, 0.1, steps=1000) == pytest.approx(1.0)


def test_where_steps_and_bytes_count_both_are_spent():
    assert _best(0.01, 0.1, steps=1000, bytes=5e7) == pytest.approx(5e7 / 1000 / 1e6, rel=0.03)


@pytest.mark.parametrize(("slowdown", "share"), [(5, 1 / 5), (1 / 5, 5), (1.5, 1)])
def test_the_level_follows_a_link_that_changes_and_stays_where_it_hardly_does(slowdown: float, share: float):
    setup = SearchSetup(space=SPACE, config=BoConfig(), budget=Budget(seconds=60), seed=0)
    current = BELOW / (1 - BELOW) / 32  # of a link on which a dense exchange takes 32 times as long as a step computes
    after = Link(compute_s=0.01, seconds_per_byte=slowdown * 32 * 0.01 / 1_000_000)

    assert suggested_level(setup, after, current) == pytest.approx(share * current, rel=0.1)


@pytest.mark.parametrize("factor", [1, 7])
def test_an_exchange_that_sends_more_than_its_density_of_the_dense_bytes_is_counted_at_what_it_sends(factor: int):
    table = tuple((level, factor * level * 1e6) for level in SPACE.axes[0].grid(9))  # gathered from several nodes
    space = SPACE.model_copy(update={"level_bytes": table})
    setup = SearchSetup(space=space, config=BoConfig(), budget=Budget(seconds=60), seed=0)
    measured = Link(compute_s=0.01, seconds_per_byte=32 * 0.01 / 1_000_000)

    suggested = suggested_level(setup, measured, current=1.0)

    assert suggested == pytest.approx(BELOW / (1 - BELOW) / 32 / factor, rel=0.1)


@pytest.mark.parametrize(("budget", "level"), [({"bytes": 10**9}, 0.003), ({"bytes": 10**8, "steps": 1000}, 0.1)])
def test_without_a_clock_a_run_opens_with_the_density_by_which_the_budget_teaches_most(budget, level):
    opened = with_best_density(SPACE, Budget(**budget))

    assert opened.opening.level == pytest.approx(level, rel=0.05)
    assert with_best_density(opened, Budget(**budget)) == opened


def test_with_a_clock_and_no_link_a_run_opens_in_the_middle():
    assert with_best_density(SPACE, Budget(seconds=60, bytes=10**9)) == SPACE


def test_where_nobody_knows_what_a_dense_step_sends_the_level_stays():
    known = Link(compute_s=0.01, seconds_per_byte=1e-5)
    space = SPACE.model_copy(update={"dense_bytes": None})
    setup = SearchSetup(space=space, config=BoConfig(), budget=Budget(seconds=60), seed=0)

    assert suggested_level(setup, known, 0.02) == 0.02


def test_steps_whose_bytes_take_less_than_they_scatter_leave_the_link_as_it_is_known():
    known = Link(compute_s=0.01, seconds_per_byte=1e-7)
    alike = [StepCost(bytes=20_000, seconds=0.012), StepCost(bytes=10_000, seconds=0.0122)]

    assert is_hidden(known, alike)
    assert not is_hidden(known, [StepCost(bytes=200_000, seconds=0.03), StepCost(bytes=10_000, seconds=0.011)])
    assert not is_hidden(known, [StepCost(bytes=20_000, seconds=0.03), StepCost(bytes=10_000, seconds=0.02)])
