"""Sweeps as pure functions: samples, survivors of a rung, and rankings."""

import itertools
from typing import Any

import pytest
from botorch.acquisition.multi_objective import logei
from hypothesis import given, settings, strategies as st
from pydantic import ValidationError

from search.sweep.draw import combinations, designed, distinct, features, random_points, sobol_points, values_at
from search.sweep.propose import Seen, outcomes_of, propose
from search.sweep.ranking import Mark, Standing, best_trade_offs, fronts, places, pruned, ranking, saved_share
from search.sweep.spec import MAX_SAMPLES, ParamRange, SweepConfig, num_combinations

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


@pytest.mark.parametrize("sampler", ["sobol", "random"])
@pytest.mark.parametrize(
    ("params", "num"),
    [
        ({"size": ParamRange(choice=(16, 32, 64)), "momentum": ParamRange(choice=(0.8, 0.9))}, 6),
        (
            {"depth": ParamRange(log_integer=(1, 64)), "bias": ParamRange(choice=(False, True))},
            128,
        ),  # few cells are wide
    ],
)
def test_no_sample_is_drawn_twice_while_there_are_others_and_then_each_comes_again(
    sampler: Any, params: Any, num: int
) -> None:
    drawn = designed(params, SweepConfig(samples=2 * num, sampler=sampler))

    assert num_combinations(params) == num
    assert all(values not in drawn[:at] for at, values in enumerate(drawn[:num]))
    assert drawn[num:] == drawn[:num]
    assert designed(params, SweepConfig(samples=num - 1, sampler=sampler)) == drawn[: num - 1]


def test_where_no_values_come_twice_the_samples_are_the_points_in_order() -> None:
    assert designed(PARAMS, SweepConfig(samples=24, seed=5)) == [
        values_at(PARAMS, point) for point in sobol_points(24, len(PARAMS), seed=5)
    ]


def test_of_huge_ranges_only_as_many_values_as_there_are_samples_are_looked_at() -> None:
    params = {"a": ParamRange(log_integer=(1, 2**62)), "b": ParamRange(integer=(-(2**63), 2**63 - 1))}

    found = list(combinations(params))

    assert len(found) == len(distinct(found)) == 2 * MAX_SAMPLES
    assert not list(combinations(params | {"c": ParamRange(uniform=(0.0, 1.0))}))


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


@given(found=marks(), reduction=st.integers(2, 4))
def test_a_sample_as_good_as_one_that_would_go_on_now_goes_on(found: list[Mark], reduction: int) -> None:
    there = [Mark(f"t{at}", 0, each.value) for at, each in enumerate(found)]
    ended = pruned(there, {mark.trial for mark in there}, num_rungs=1, reduction=reduction)

    for at, mark in enumerate(there):
        is_finite = mark.value is not None and mark.value < float("inf")
        ahead = [there[each] for each in places(there[: at + 1])[: max(1, (at + 1) // reduction)]]
        if is_finite and any(each.value == mark.value for each in ahead):
            assert mark.trial not in ended


DENSE, BETWEEN, CHEAP = Mark("dense", 0, 0.1, 9.0), Mark("between", 0, 0.5, 5.0), Mark("cheap", 0, 0.9, 1.0)
DOMINATED, DIVERGED = Mark("dominated", 0, 0.95, 2.0), Mark("diverged", 0, None, 0.5)


@pytest.mark.parametrize(
    ("there", "last"),
    [
        ([DENSE, CHEAP, DOMINATED], "dominated"),
        ([DENSE, CHEAP, BETWEEN], "between"),  # there is room for no more than the ends
        ([DENSE, BETWEEN, CHEAP], None),
        ([CHEAP, BETWEEN, DENSE], None),
        ([DENSE, DIVERGED, CHEAP], None),  # though it cost more than what diverged
    ],
)
def test_with_a_cost_both_ends_of_the_front_go_on(there: list[Mark], last: str | None) -> None:
    ended = pruned(there, {there[-1].trial}, num_rungs=1, reduction=3)

    assert ended == ({} if last is None else {last: 0})


def test_equal_samples_all_go_on() -> None:
    equal = [Mark(f"t{at}", 0, -0.75) for at in range(9)]

    assert pruned(equal, {mark.trial for mark in equal}, num_rungs=1, reduction=3) == {}


@given(found=marks())
@settings(max_examples=50)
def test_the_ranking_names_each_trial_once_further_ones_first_and_diverged_ones_last(found: list[Mark]) -> None:
    last = {mark.trial: mark for mark in found}
    standings = [Standing(trial, mark, is_lost=trial == "t1") for trial, mark in last.items()]

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


def test_what_diverged_is_not_drawn_again_while_there_are_others() -> None:
    params = {"optimizer": ParamRange(choice=("a", "b", "c", "d", "e", "f"))}
    sweep = SweepConfig(sampler="bo")
    seen = [Seen({"optimizer": name}, 1.0, None if name in "bd" else 0.5) for name in "abcd"]

    drawn = {propose(params, sweep, number, seen=seen).values["optimizer"] for number in (4, 5)}
    last = propose(params, sweep, 5, seen=[*seen, Seen({"optimizer": "e"}, 1.0, 0.6)])

    assert drawn <= {"e", "f"} and last.values == {"optimizer": "f"}


@pytest.mark.parametrize(("cost", "rule"), [(None, "qLogNEI"), ("bytes", "qLogNEHVI")])
def test_a_model_keeps_away_from_rates_that_diverged(cost: Any, rule: str) -> None:
    params = {"rate": ParamRange(log_uniform=(1e-3, 1e3))}
    finite = [Seen({"rate": 10.0**power}, 1.0, 0.5 - 0.1 * power, 1e6) for power in (-2, -1, 0)]
    seen = [*finite, *(Seen({"rate": rate}, 1.0, None) for rate in (10.0, 100.0))]

    found = propose(params, SweepConfig(sampler="bo", cost=cost), 5, seen=seen)

    assert found.drawn_by == rule and float(found.values["rate"]) < 10  # type: ignore[arg-type]


@pytest.mark.parametrize("others", [(0.7, 0.9), (0.3, 0.9), ()])
def test_where_most_values_are_equal_the_others_still_count(others: tuple[float, ...]) -> None:
    values = (0.5, 0.5, 0.5, 0.5, *others)
    seen = [Seen(values={}, share=1.0, value=value) for value in values]

    goodness = outcomes_of(seen, is_paired=False)[:, 0].tolist()

    assert [values[place] for place in sorted(range(len(values)), key=lambda each: -goodness[each])] == sorted(values)
    assert len(set(goodness)) == len(set(values))


def test_costs_stay_apart_however_far_most_of_them_are_below() -> None:
    seen = [Seen({}, 1 / 9, 1.0 + 0.01 * at, 1e7 if at > 5 else 1e6) for at in range(9)]
    seen.append(Seen({}, 1.0, None))

    goodness, cheapness = outcomes_of(seen, is_paired=True).unbind(dim=1)

    assert cheapness[0] - cheapness[8] > 1
    assert goodness.argmin() == 9 and cheapness.isnan().tolist() == [False] * 9 + [True]


def test_the_cost_of_a_whole_budget_is_what_a_share_of_it_tells() -> None:
    seen = [Seen({}, share, 1.0, cost * share) for share in (1 / 9, 1 / 3, 1.0) for cost in (0.0, 1e6, 3e6)]

    cheapness = outcomes_of(seen, is_paired=True)[:, 1]

    assert cheapness.reshape(3, 3).std(dim=0).max() < 1e-9
    assert cheapness[0] > cheapness[1] > cheapness[2]


@pytest.mark.parametrize("fits", [lambda _: True, lambda values: values["x"] % 4 == 0])
def test_the_last_values_that_are_left_are_found_before_any_come_again(fits: Any) -> None:
    params = {"x": ParamRange(log_integer=(1, 40))}
    legal = [{"x": x} for x in range(1, 41) if fits({"x": x})]

    for left in (legal[0], legal[-1]):
        pending = [values for values in legal if values != left]
        assert propose(params, SweepConfig(sampler="bo"), 4, seen=[], pending=pending, fits=fits).values == left
    again = propose(params, SweepConfig(sampler="bo"), 4, seen=[], pending=legal, fits=fits)
    assert again.values in legal


def test_where_no_point_fits_an_earlier_sample_comes_again() -> None:
    params = {"x": ParamRange(uniform=(0.0, 1.0))}
    seen = [Seen({"x": x / 5}, 1.0, x) for x in range(5)]

    found = propose(params, SweepConfig(sampler="bo"), 5, seen=seen, fits=lambda values: values["x"] == 0.4)

    assert found.values == {"x": 0.4}


@pytest.mark.parametrize("num_seen", [2, 6])
def test_a_proposal_passes_over_values_that_do_not_fit_unless_none_does(num_seen: int) -> None:
    params = {"x": ParamRange(integer=(0, 40))}
    sweep = SweepConfig(sampler="bo")
    seen = [Seen({"x": x}, 1.0, (x - 18.0) ** 2) for x in range(0, 8 * num_seen, 8)]

    def is_multiple(values: Any) -> bool:
        return values["x"] % 4 == 0

    assert is_multiple(propose(params, sweep, 4, seen=seen, fits=is_multiple).values)
    assert propose(params, sweep, 4, seen=seen, fits=lambda _: False) == propose(params, sweep, 4, seen=seen)
