"""Sweeps: what is drawn, who goes on at a rung, and who ranks where: pure functions of what is given."""

import itertools
from typing import Any

import pytest
from botorch.acquisition.multi_objective import logei
from hypothesis import given, settings, strategies as st
from pydantic import ValidationError

from search.sweep.draw import designed, features, random_points, sobol_points, values_at
from search.sweep.propose import Seen, propose
from search.sweep.ranking import Mark, Standing, best_trade_offs, fronts, places, pruned, ranking, saved_share
from search.sweep.spec import ParamRange, SweepConfig

PARAMS = {
    "optimizer.learning_rate": ParamRange(log_uniform=(1e-4, 1.0)),
    "workload.width": ParamRange(log_integer=(16, 512)),
    "workload.depth": ParamRange(integer=(1, 4)),
    "workload.act": ParamRange(choice=("relu", "gelu", "tanh")),
    "optimizer.momentum": ParamRange(uniform=(0.0, 0.99)),
}
#: Few values, so that many are equal.
LOSSES = st.one_of(st.none(), st.sampled_from([0.1, 0.2, 0.5, 1.0, 2.0, float("inf")]))
COSTS = st.sampled_from([1.0, 2.0, 3.0])


@st.composite
def marks(draw: Any, *, num_rungs: int = 2) -> list[Mark]:
    """What up to nine trials measured, each at its rungs in order, in any order among each other."""
    left = {f"t{number}": 0 for number in range(draw(st.integers(1, 9)))}
    found = []
    while left and len(found) < 20:
        trial = draw(st.sampled_from(sorted(left)))
        found.append(Mark(trial, left[trial], draw(LOSSES), draw(COSTS)))
        left[trial] += 1
        if left[trial] > num_rungs:
            del left[trial]
    return found


@pytest.mark.parametrize("sampler", ["sobol", "random", "bo"])
def test_the_same_seed_draws_the_same_samples_and_more_of_them_begin_with_fewer(sampler: str) -> None:
    few, many = (designed(PARAMS, SweepConfig(samples=each, sampler=sampler, seed=5)) for each in (8, 24))

    assert few == designed(PARAMS, SweepConfig(samples=8, sampler=sampler, seed=5))
    assert many[: len(few)] == few
    assert few != designed(PARAMS, SweepConfig(samples=8, sampler=sampler, seed=6))


@given(point=st.lists(st.floats(0, 1, exclude_max=True), min_size=5, max_size=5))
def test_every_point_stands_for_values_within_their_ranges(point: list[float]) -> None:
    values = values_at(PARAMS, point)

    assert 1e-4 <= values["optimizer.learning_rate"] <= 1.0
    assert values["workload.width"] in range(16, 513)
    assert values["workload.depth"] in range(1, 5)
    assert values["workload.act"] in ("relu", "gelu", "tanh")
    assert 0 <= values["optimizer.momentum"] <= 0.99
    seen = features(PARAMS, values)
    assert len(seen) == 4 + 3 and all(-1e-9 <= each <= 1 + 1e-9 for each in seen)


def test_whole_numbers_and_choices_are_drawn_equally_often() -> None:
    drawn = designed(PARAMS, SweepConfig(samples=256))

    for path, expected in (("workload.depth", 64), ("workload.act", 85)):
        counts = {value: sum(each[path] == value for each in drawn) for value in {each[path] for each in drawn}}
        assert all(abs(count - expected) <= 4 for count in counts.values()), counts


def test_sobol_points_fill_the_cube_more_evenly_than_random_ones() -> None:
    cells = [
        len({tuple(int(4 * axis) for axis in point) for point in draw(16, 2, seed=1)})
        for draw in (sobol_points, random_points)
    ]

    assert cells[0] > cells[1] and cells[0] >= 14


@pytest.mark.parametrize(
    "given_",
    [
        {"uniform": (1.0, 0.0)},
        {"log_uniform": (0.0, 1.0)},
        {"integer": (3, 3)},
        {"choice": ("a",)},
        {"choice": ("a", "a")},
        {"uniform": (0.0, 1.0), "integer": (0, 1)},
        {"uniform": (0.0, float("nan"))},
        {},
    ],
)
def test_a_range_has_one_form_and_low_below_high(given_: Any) -> None:
    with pytest.raises(ValidationError):
        ParamRange.model_validate(given_)


def test_rungs_are_shares_that_grow_by_the_reduction_and_none_is_below_the_first() -> None:
    assert SweepConfig().rungs() == pytest.approx((1 / 9, 1 / 3))
    assert SweepConfig(reduction=2, first_rung=0.25).rungs() == (0.25, 0.5)
    assert SweepConfig(first_rung=0.5).rungs() == ()
    assert SweepConfig(scheduler="none").rungs() == ()


def test_the_expected_share_is_what_successive_halving_takes() -> None:
    assert SweepConfig().expected_share() == pytest.approx(1 / 9 + (1 / 3 - 1 / 9) / 3 + (2 / 3) / 9)
    assert SweepConfig(scheduler="none").expected_share() == 1


@given(points=st.lists(st.tuples(COSTS, COSTS), max_size=12))
def test_a_front_is_one_more_than_the_last_front_of_those_that_beat_it(points: list[tuple[float, float]]) -> None:
    def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
        return one != other and one[0] <= other[0] and one[1] <= other[1]

    found = fronts(points)

    for number, point in zip(found, points, strict=True):
        better = [front for front, each in zip(found, points, strict=True) if beats(each, point)]
        assert number == max(better, default=-1) + 1


@given(found=marks(), data=st.data())
def test_what_comes_later_changes_no_decision(found: list[Mark], data: Any) -> None:
    samples = {mark.trial for mark in found}
    until = data.draw(st.integers(0, len(found)))

    early = pruned(found[:until], samples, num_rungs=2, reduction=3)

    late = pruned(found, samples, num_rungs=2, reduction=3)
    assert early.items() <= late.items()


@given(found=marks(), reduction=st.integers(2, 4))
def test_arms_never_end_the_best_at_a_rung_goes_on_and_what_is_not_finite_does_not(
    found: list[Mark], reduction: int
) -> None:
    arms = {"t0", "t1"}
    samples = {mark.trial for mark in found} - arms

    ended = pruned(found, samples, num_rungs=2, reduction=reduction)

    assert not arms & ended.keys()
    for at, mark in enumerate(found):
        there = [each for each in found[: at + 1] if each.rung == mark.rung]
        is_finite = mark.value is not None and mark.value < float("inf")
        if mark.trial in samples and not is_finite and mark.rung < 2:
            assert mark.trial in ended
        if is_finite and places(there)[0] == len(there) - 1:
            assert ended.get(mark.trial) != mark.rung


@given(found=marks())
@settings(max_examples=50)
def test_the_ranking_names_each_trial_once_further_ones_first_and_diverged_ones_last(found: list[Mark]) -> None:
    last = {mark.trial: mark for mark in found}
    standings = [Standing(trial, mark, is_diverged=trial == "t1") for trial, mark in last.items()]

    ranked = ranking([*standings, Standing("new", None)])

    assert sorted(ranked) == sorted([*last, "new"])
    rungs = [last[trial].rung for trial in ranked if trial in last and trial != "t1"]
    assert rungs == sorted(rungs, reverse=True)
    if "t1" in last:
        assert ranked[-1] == "t1"


@given(found=marks(num_rungs=0))
def test_a_trade_off_is_on_the_front_if_and_only_if_nothing_beats_it(found: list[Mark]) -> None:
    known = [mark for mark in found if mark.value is not None and mark.value < float("inf")]

    def is_beaten(mark: Mark) -> bool:
        own = (mark.value, mark.cost)
        others = [(each.value, each.cost) for each in known if (each.value, each.cost) != own]
        return any(value <= mark.value and cost <= mark.cost for value, cost in others)

    assert best_trade_offs(found) == {mark.trial for mark in known if not is_beaten(mark)}


def test_with_no_costs_the_front_is_the_best_value() -> None:
    assert best_trade_offs([Mark("a", 2, 0.5), Mark("b", 2, 0.4), Mark("c", 2, None)]) == {"b"}


def test_what_is_saved_is_what_those_that_ended_have_left() -> None:
    assert saved_share((0.25, 0.5), {"a": 0, "b": 1}, 5) == pytest.approx((0.75 + 0.5) / 5)


def test_a_proposal_is_a_pure_function_of_what_was_seen_and_no_sample_comes_twice() -> None:
    params = {"x": ParamRange(integer=(0, 9)), "y": ParamRange(choice=("a", "b"))}
    sweep = SweepConfig(sampler="bo", cost="bytes", seed=3)
    grid = itertools.product(range(0, 10, 2), ("a", "b"))
    seen = [Seen({"x": x, "y": y}, 1.0, (x - 5) ** 2 + (y == "b"), 10.0 - x) for x, y in grid]

    first = propose(params, sweep, 10, seen=seen, pending=[{"x": 5, "y": "a"}])

    assert first == propose(params, sweep, 10, seen=seen, pending=[{"x": 5, "y": "a"}])
    assert first.drawn_by == "qLogNEHVI"
    assert first.values not in [each.values for each in seen] + [{"x": 5, "y": "a"}]
    assert logei._C is None  # it would take a minute to compile, and round as no machine without a compiler does


def test_with_one_objective_a_proposal_is_near_the_best_and_with_few_marks_it_is_the_designs_next() -> None:
    params = {"x": ParamRange(uniform=(0.0, 1.0))}
    sweep = SweepConfig(sampler="bo")
    seen = [Seen({"x": x / 10}, 1.0, (x / 10 - 0.42) ** 2) for x in range(0, 11, 2)]

    found = propose(params, sweep, 6, seen=seen)

    assert found.drawn_by == "qLogNEI" and abs(float(found.values["x"]) - 0.42) < 0.15  # type: ignore[arg-type]
    early = propose(params, sweep, 6, seen=seen[:3])
    assert early.drawn_by == "sobol"
    assert early.values == designed(params, SweepConfig(samples=7))[6]


@pytest.mark.parametrize("num_seen", [2, 6])
def test_a_proposal_passes_over_values_that_do_not_fit_unless_none_does(num_seen: int) -> None:
    params = {"x": ParamRange(integer=(0, 40))}
    sweep = SweepConfig(sampler="bo")
    seen = [Seen({"x": x}, 1.0, (x - 18.0) ** 2) for x in range(0, 8 * num_seen, 8)]

    def is_multiple(values: Any) -> bool:
        return values["x"] % 4 == 0

    assert is_multiple(propose(params, sweep, 4, seen=seen, fits=is_multiple).values)
    assert propose(params, sweep, 4, seen=seen, fits=lambda _: False) == propose(params, sweep, 4, seen=seen)
